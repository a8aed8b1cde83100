"""Every deadline, period and size of the stages. Times are seconds; a deadline is for the answer of a single host.

The deadlines of connections, and the pauses between retries, are in transport/limits.py.
"""

from __future__ import annotations

# --- questions of preflight (probe.py, preflight.py, discover.py, recall.py, fix.py)
PROBE_SLACK_S = 30.0  # connecting, starting the worker and the way back, on top of the questions' own deadlines
FREE_PORT_S = 30.0  # picking a free port on the master, or looking whether two are still free
FIREWALL_S = 20.0  # reading a host's packet filter rules as the login
ROOT_FIREWALL_S = 20.0  # each tool's rules, read through sudo
INTERPRETERS_S = 20.0  # looking for Pythons: a home folder may be on a slow network disk
FIX_S = 120.0  # a command of `preflight --fix`: it may install a package
PREFLIGHT_FRESH_S = 60.0  # `up` takes the clean result of a preflight this old instead of measuring again
PORT_PAIRS = 245  # pairs of ports that jobs start looking from, up to 29989; the few above are left to move on to

# --- the mesh (mesh.py)
MESH_LISTEN_S = 300.0  # a listener ends by itself after this time, in case ddpctl has died
MESH_READY_S = 30.0  # all hosts together, until every listener is ready
MESH_DIAL_S = 180.0  # one host dials all its targets
MESH_END_S = 10.0  # all listeners together, to end after the dialling
MESH_QUIET_S = 8.0  # all second measurements of slow links together
SAMPLES = 3  # ephemeral ports that every host also listens on
MANY_HOSTS = 16  # above this count each link is tried with fewer ports and fewer bytes: there are enough links
BULK_BYTES = 1 << 20  # sent over each link
SMALL_BYTES = 256 << 10  # the same with many hosts, and after a stall
QUIET_BYTES = 4 << 20  # at most, when a slow link is measured again without other traffic
QUIET_REPEAT = 3  # second measurements of a slow link; the best counts
BUSY_REPEAT = 20  # the same of a fast link: most of these moments measure busy processors, the best measures the link

# --- rehearsal (rehearse.py)
REHEARSAL_PHASE_S = 30  # the longest wait within a phase; an option of the rehearsal's program
REHEARSAL_S = 120.0  # imports and all phases on a node
REHEARSAL_OTHERS_S = 20.0  # for the other nodes once the first has ended: all ranks get through, or no rank does
REHEARSAL_SLACK_S = 40.0  # connecting, and ending the processes that are left

# --- checkpoints (checkpoints.py, restore.py)
CHECKPOINTS_S = 60.0  # listing or renaming a job's checkpoints: thousands of files on a slow disk
COPY_LATE_S = 300.0  # after a save without a second copy: longer than a host waits before it tries again to copy it
HASH_BLOCK_BYTES = 1 << 20  # read at a time to hash a file that came
RESTORE_S = 24 * 3600.0  # all checkpoints of a job on all hosts
RESTORE_MANIFESTS = 10_000  # that one host may send: more is no honest answer

# --- a save on request (save.py)
SAVE_ASK_S = 20.0  # until a node has sent the signal to its ranks
SAVE_POLL_S = 1.0  # between two looks for the new checkpoint
SAVE_STATUS_S = 5.0  # between two looks at the run meanwhile: it may have ended
ONE_SAVE_S = 120.0  # files of a host within this time, by its own clock, belong to one save
SAVE_QUIET_S = 3.0  # without news after which the first save of a job counts as finished
STEPLESS_SAVE_QUIET_S = 30.0  # the same if a file without a step, like best.pt, may not be written each time
SAVE_LAST_LINES = 3  # hosts whose last line of output an error shows

# --- start and stop (slots.py, start.py, up.py, joining.py, stop.py, remove.py, gc.py)
SLOTS_S = 30.0  # for a list of the claims of a host; where it lists GPUs, the driver may take seconds to answer
START_S = 60.0  # until a node has started its launcher and recorded that
BEGIN_S = 90.0  # until a node of a run with restarts has met the other nodes and started its part
UNDO_GRACE_S = 2.0  # between SIGTERM and SIGKILL for a run that has only just begun
JOINING_QUIET_S = 5.0  # a start that is quicker than this needs no words
NAMED_QUEUED = 4  # hosts of a run that waits for slots, in one line
JOINING_POLL_S = 3.0  # between two looks at a start that takes longer
KILL_PROOF_S = 30.0  # beyond the graces: rounds of SIGKILL until two scans find no process
KILL_GRACES = 2  # graces: a hanging supervisor is waited for, then the worker gives the ranks the same time itself
REMOVE_S = 600.0  # a run may have written many files
GC_S = 600.0  # the same of many runs
GC_KEEP_DAYS = 7.0  # days without use after which gc removes

# --- reading runs (status.py, doctor.py, report.py, untracked.py, top.py)
STATUS_S = 20.0  # a host's records of all its runs
END_S = 30.0  # for a host to report the end of a run, if its connection broke at that end
END_PAUSE_S = 0.5  # between two of these questions
NAMED_OWNERS = 3  # that an error names
DOCTOR_LOOK_S = 15.0  # a look takes a second; an overloaded node may need longer to begin
REPORT_S = 240.0  # a node reads its files of metrics, which may be long
CLOCK_SKEW_S = 5.0  # by which the clocks of two hosts may differ
UNTRACKED_S = 20.0  # a host looks for a second
TOP_SILENT_S = 10.0  # without a pulse, which comes every two seconds, a host counts as silent
TOP_ONCE_S = 20.0  # the single pulse of a host for `top --json`

# --- following the output (follow.py)
GIVE_UP_S = 30.0  # for a host that cannot be reached, once every other host is over
GIVE_UP_FAILED_S = 2.0  # the same once a host has failed: without restarts the run ends, and its output can wait
WORKER_DEATHS = 5  # in a row, of the workers that read a host's output; one more ends the following of that host
IDLE_S = 0.2  # the loop waits this long for something to come
TURN_S = 0.02  # the same while lines wait for lines of other hosts
ROOM_S = 0.5  # how often a reader that waits for room looks whether it is still wanted
READERS_END_S = 1.0  # all readers together, to end; a reader that is connecting cannot be called back
RUN_APPEARS_S = 60.0  # a host that the start has not reached yet is asked this long
RUN_APPEARS_POLL_S = 0.5  # between two of these questions
TAIL_LINES_S = 600.0  # of waiting for a host between its lines, if not followed: its disk may hang, or it may lie
NOISE_LINES = 200  # that a host's last lines may hold and that are not shown

# --- files and commands (fetch.py, execute.py, trust.py)
FETCH_S = 24 * 3600.0  # all files of one host
FILE_PROGRESS_BYTES = 4096  # that a file counts as progress beside its bytes: it may be empty
FETCH_WATCH_S = 5.0  # between two looks for changed outputs
FETCH_CLEANUP_S = 2.0  # after Ctrl-C, all hosts together, to remove the files that are not whole
FETCH_SPARE_BYTES = 1 << 30  # of this machine's disk that files of nodes may not fill, or a twentieth of a small disk
FETCH_SPARE_FILES = 10_000  # the same for the number of files
FETCH_FILES = 1_000_000  # of one host, of all looks together: empty files have no bytes that count
FETCH_KNOWN_FILES = 20_000  # files whose state a single request may list
SUDO_PROBE_S = 30.0  # finding out how a host's sudo works, or trying a password
KNOWN_HOSTS_LOCK_S = 10.0  # waiting for another ddpctl that writes known_hosts

# --- benchmarks (bench.py)
METRICS_READ_S = 30.0  # the new metrics of one host
METRICS_LINES = 100_000  # of a rank that are kept: a job that writes more writes a line for each microsecond-long step
BENCH_POLL_S = 1.0  # between two looks at a measured run
BENCH_GRACE_S = 5.0  # between SIGTERM and SIGKILL once a run is measured
BENCH_FIRST_LINE_S = 300.0  # from the start to the first line: import, data, compilation
BENCH_REST_S = 60.0  # for the remaining metrics of a run that is over: a host may send lines without end
BENCH_MOST_S = 900.0  # from the first line: a job that writes a line an epoch may need several epochs

# --- data folders (push_data.py)
DATA_MISSING_S = 600.0  # a look at every file of the data on a node: millions of files on a slow disk
DATA_PLACE_S = 4 * 3600.0  # unpacking a batch, or a copy of all files on a file system without hard links
DATA_BATCH = 128  # bundles that arrive before a node unpacks them: the node needs room for both
