"""Every deadline, period, size and threshold of spec. The defaults of inventory keys stand beside their keys.

Unless a name says otherwise, times are seconds and the other numbers are counts.
"""

from __future__ import annotations

from datetime import timedelta

# --- sizes of an inventory: more is a typing mistake (ranges.py, job.py, values.py)
MAX_HOSTS = 4096  # hosts of a range, and of an inventory
MAX_NODES = 4096  # nodes, spares and replicas of a job
MAX_COUNT = 1024  # processes of one node
MAX_NOTIFIERS = 16  # commands and webhooks of one job

# --- messages (names.py, inventory.py, draft.py, nvidia.py)
MOST_RUN_IDS = 8  # run ids in the message about an ambiguous beginning
MOST_VALID_NAMES = 12  # valid names in the message about an unknown name
MOST_HOST_NAMES = 8  # host names in the message about an unknown host of `ddpctl init`
MOST_PATHS = 3  # interpreter paths in a choice of `ddpctl init`
SMI_MESSAGE_LETTERS = 300  # of an error message of nvidia-smi

# --- questions to a node (question.py, nvidia.py)
QUESTION_S = 5.0  # the answer to a question that names no deadline of its own
SMI_S = 20.0  # nvidia-smi: without persistence mode the driver starts first, which takes seconds per GPU

# --- what is read from a program's text (imports.py, backend.py)
MAX_FILES = 1000  # files of the code folder whose imports are followed
BACKEND_STEPS = 8  # from a name to the text that it stands for: definitions may refer to each other in a circle

# --- the mesh (schedule.py, mesh.py, network.py, fabric.py)
MOST_ADDRESSES = 4  # addresses of a node that the mesh tries
FULL_MESH_HOSTS = 64  # with more hosts only a sample of the links is measured: their number grows with the square
# Random partners of a host in a sample. A host dials at least 8 new peers: with an odd number of hosts it may have no
# partner in one round, and the master and both neighbours in the ring may be among the partners.
PARTNERS = 12
MOST_REMEASURED = 12  # links that are measured again because they look slow or late
MOST_REMEASURED_PER_HOST = 4  # of these at one host: a bad port makes every link of its host slow
MOST_RECORDED_HOSTS = 64  # hosts whose links the record of a run holds

SLOW_LINK_SHARE = 0.5  # of the median rate: a link below this is slow ...
# ... but above this rate the load of the CPUs disturbs the measurement: such a link is slow only below this share.
NOISY_MBIT, NOISY_LINK_SHARE = 2000.0, 0.33
FAST_ENOUGH_MBIT = 5000.0  # above this rate one TCP connection measures the CPUs and not the link: never slow
HARDLY_USABLE_MBIT = 80.0  # below this rate a link is always slow: a 100 Mbit/s port gives 94
LATE_LINK_FACTOR = 3.0  # times the median round trip: a link above this is late ...
LATE_LINK_MS = 2.0  # ... if it is also this many milliseconds above the median
LEAST_COMPARED = 3  # links or hosts that a median needs: with two, it does not show which of both is slow

# --- benchmarks (bench.py)
WARM_UP_LINES = 1  # the first metrics of a rank do not count: buffers, connections and kernels are made meanwhile
LEAST_SAMPLES_PER_S, MOST_SAMPLES_PER_S = 1e-9, 1e12  # of a job; another value is no speed that can be compared
SLOW_HOST_SHARE = 0.5  # of the median bandwidth of all hosts: a host or pair below this is slow
LATE_HOST_FACTOR = 3.0  # times the median latency of all hosts: a host above this is late

# --- the output of the ranks (noise.py, lines.py, flow.py)
HELD_LINES = 20_000  # of all hosts, that are held back: the newest; a node may repeat its launcher's notice for ever
HELD_LETTERS = 2000  # of such a line: a longer line is shown
FOLD_S = 1.0  # equal lines of several ranks are folded if they lie no further apart
HOLD_S = 0.25  # a new line waits so long for earlier lines of other hosts
LINE_TURN_S = 0.05  # between two looks at lines that wait
SILENT_HOST_S = 3.0  # a live host that is behind and sends nothing delays the other hosts no longer than this
LINES_AHEAD = 1000  # a line is shown after that many later lines were searched for lines to fold with it
FULL_BATCH = 20  # the weight of a batch with more log behind it; any other batch weighs 1
MOST_WEIGHT = 60  # the weight of all batches of a host that may wait: three full batches, or 60 small batches
SPARE_LINES = 10_000  # for the last N lines, 2 N + SPARE_LINES lines are kept before the list is cut

# --- reports (curves.py)
MOST_POINTS = 500  # points of a curve
MOST_GRID_VALUES = 500_000  # points times ranks: beyond it only every second, third ... point is computed

# --- runs (restart.py, outcome.py, job.py)
MOST_EARLIER_ATTEMPTS = 20  # attempts of the continued run in the record; older attempts still count in the numbers
SURVIVED = timedelta(minutes=10)  # an elastic run survived a failure that happened so long before its last failure
AFTER_S = 3600.0  # for the shell text `after` of a job: an upload of a large checkpoint
SAVE_S = 120.0  # until a requested checkpoint is there, if a damaged record does not have the job's own time
SILENCE_WARNING_S = 1800.0  # without output so long, a job without timeouts.silence gets a warning; it is never killed

# --- data folders (data.py)
SINGLE_BYTES = 8 << 20  # a file of this size travels alone; smaller files share a bundle
BUNDLE_BYTES = 32 << 20  # the files of a bundle: enough for a full link, and little to unpack at a time

# --- answers of a node (bounds.py)
DEPTH = 32  # nesting of JSON without a declared shape
