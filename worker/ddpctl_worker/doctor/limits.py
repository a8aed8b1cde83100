"""Every deadline, period, size and bound of the doctor. Times are seconds, sizes are bytes.

``rank/sitecustomize.py`` keeps its own few: it runs inside the rank and imports nothing of this package.
"""

from __future__ import annotations

# --- glances (watch.py)
GLANCE_S, MOST_GLANCE_S = 2.5, 10.0  # between two glances: at least and at most
REST_FACTOR = 200  # a glance, or a judgement of speed, is followed by so many times its processor time: 0.5 % of a core
WAKE_S = 1.0  # the longest sleep of the doctor's thread; also its pause after an error
GLANCE_RANKS = 8  # in a message of a glance: a rank takes up to 12 KB, a line of the gang's protocol 256 KB
MOST_MESSAGES = 4096  # of the other nodes, not yet read: more are dropped

# --- close looks (look.py, watch.py)
LOOK_S = 1.0  # a close look measures work over this time
SAMPLES = 4  # of the stack in that time
LOOK_DEADLINE_S = 2.0  # for a rank that does not answer, beyond the look itself
LAST_RECORD_S = 0.2  # for the collectives of a rank that is about to be stopped
OTHER_LOOKS_S = 4.0  # for the close looks of the other nodes
MOST_CHILDREN = 4  # of a rank, in a look
MOST_WAITED_FOR = 16  # the same for a rank that waits for its children
MOST_DESCENDANTS = 256  # of a rank: more are not counted as its work
MOST_THREADS = 8  # of a rank, beside the main thread
MOST_UNANSWERED = 4  # connections of a rank, in a look
RESENT = 6  # TCP sends data again after 0.2 s, then after twice that, and so on: the sixth time is 12 s after the data
THREAD_FRAMES, CHILD_FRAMES = 12, 24  # the innermost frames of a thread, and of a child
SEARCH_AFTER_S = 2.0  # from the first failure by a time-out until stacks count: the other ranks that waited end by then
SEARCH_S = 10.0  # for looks until each living rank was seen: on a busy host the look at a rank may take too long
SEARCH_AGAIN_S = 60.0  # between two searches: the ranks that wait time out together, and NCCL says so in several lines

# --- answers of a rank (server.py, stacks.py)
SERVER_S = 0.5  # torch's debug server answers within a millisecond; a stopped process never does
PY_SPY_S = 1.0
PY_SPY_BYTES = 4 << 20
SIGNAL_S = 0.5  # from the signal to the stack that the rank writes; a look takes two stacks, within LOOK_DEADLINE_S
SIGNAL_LOOK_S = 0.01  # between two looks at that file
WHOLE_STACK_S = 0.05  # a stack without another line for this long is whole; on a starved host a rank writes with pauses
STACK_BYTES = 64 << 10  # of the end of that file
STACK_FILE_BYTES = 256 << 10  # a larger file is emptied before the next stack

# --- when a close look is due (stall.py)
LOOK_AGAIN_S, MOST_LOOK_AGAIN_S = 5.0, 60.0  # between two close looks in the same pause: at least and at most
QUIET_SHARE = 0.1  # the next look comes after this share of the time for which looks have found nothing stuck
LONGER_FACTOR = 1.5  # a pause is extraordinary once it is this many times as long as any before
IDLE_CPU = 3.0  # percent of a core: less is no work
IDLE_BYTES = 4 << 10  # read and written in a second: less is no work
GLANCE_FRESH_S = 15.0  # an older glance says nothing about now

# --- reports (watch.py, service.py)
SLOW_REPORT_S = 60.0  # between two reports of the same slow ranks with new figures
REPEAT_S = 10.0  # until a report is sent again to a member that has missed it
MOST_LISTED = 100  # groups, suspects and missing facts in a diagnosis
SENT_FRAMES, SENT_ENTRIES, SENT_CHILD_FRAMES = 24, 60, 8  # of each rank, in a look for another node or for the record
ANSWER_BYTES = 3 << 20  # of the doctor verb: a message to the controller may have 4 MiB
READ_DUMPS_S = 5.0  # for the dumps of a node; a dump of 2000 collectives takes 0.1 to 0.6 s
DUMP_BYTES = 4 << 20  # a dump of 2000 collectives has about 1 MB

# --- differences between hosts (hosts.py)
BUSIER_PERCENT = 25.0  # of all processors, more than on the other hosts
CLOCK_SHARE = 0.85  # of the other hosts' clock rate: less is slow
FREE_MEMORY_SHARE = 0.05  # less is little
SWAPPED_PAGES = 50.0  # in a second
HOTTER_DEGREES = 10.0  # than the GPUs of the other hosts

# --- collectives and steps (steps.py)
KEPT_COLLECTIVES = 300  # of a group, until every rank has reported them
MOST_GROUPS = 8
KEPT_STEPS = 192  # the longest window
MOST_PERIOD = 100  # collectives in a step
MIN_GAPS = 24  # fewer say nothing about the period
PERIOD_SLACK = 1.3  # a multiple of the period fits as well: the smallest within this factor of the best is taken
PERIOD_FLOOR = 0.05  # and within this difference of logarithms
GAP_FLOOR_S = 1e-3  # shorter gaps are alike

# --- slow ranks (slow.py)
WINDOWS = (32, 48)  # steps
QUARTERS = 4
BLOCKS = 8  # of a window; their means show noise that lasts longer than a step
OWN_BLOCKS_WEIGHT = 0.75  # of a rank's own noise between blocks: 8 blocks measure it badly
QUARTER_SHARE = 0.2  # of the mean share: every quarter of the window shows as much
RECENT_STEPS = 24  # a delay that is no longer in them has ended
LAG_SHARE = 0.03  # of the step; a wait of a tenth of a step measures 5 to 10 %
OWN_LAG_SHARE = 0.015  # without waits for other ranks; measured: 3 % or more, below 1.2 % for a rank that waits
CHANCE = 0.001  # of naming any rank of a balanced job in the first window
PAUSE_FACTOR = 3.0  # times the usual largest lag: a longer lag is a pause
MIN_PAUSES = 8  # of a rank, in the longest window
GROUP_SILENT_S = 60.0  # a group is outdated when another group has arrivals that are so much newer
TINY_S = 1e-9  # keeps a division from failing
