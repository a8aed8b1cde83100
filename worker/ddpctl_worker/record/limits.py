"""Every size and deadline of a run's record. Times are seconds, sizes are bytes, unless a comment says otherwise."""

from __future__ import annotations

# --- records ---------------------------------------------------------------------------------------------------------
RESERVE_BYTES = 128 << 10  # set aside for an exit record with its candidates and tracebacks
MAX_CANDIDATES = 16  # other possible causes in an exit record
MAX_TRACEBACK = 2 << 10  # of a candidate, so that the record fits into the reserve
GONE_S = 20.0  # a folder that is missing for so long was removed; a disk may be mounted again before
WRITE_PAUSE_S = 5.0  # the longest pause between two attempts to write the exit record
WRITE_PATIENCE_S = 10.0  # how long a verb waits for a disk that takes nothing

# --- status ----------------------------------------------------------------------------------------------------------
ANSWER_BYTES = 3 << 20  # of JSON in one answer: a message may have 4 MiB
STALE_S = 15.0  # age of a heartbeat from which the supervisor counts as stuck
FEW_STRANGERS = 10  # connections: fewer come from a port scan and are not worth a line
LAG_LATE_S = 120.0  # saves without copies for so long are worth a warning; hashing and copying many GB takes a while

# --- ranks -----------------------------------------------------------------------------------------------------------
LAUNCHER_DEPTH = 3  # levels of processes between launcher and rank: the launcher may run inside a wrapper
TREE_PROCESSES = 4096  # most processes of one run that are listed
RANKS_START_S = 30.0  # from the first rank until all ranks of the node have started; a rank may never be seen
NO_PIDFD_LOOK_S = 0.5  # how often ranks are looked at where the kernel or Python has no pidfds

# --- logs ------------------------------------------------------------------------------------------------------------
SEGMENT_BYTES = 16 << 20  # of one segment
LOG_BYTES = 512 << 20  # of all segments of a run; the first segment and the newest segments are kept
QUEUE_BYTES = 64 << 20  # of records that wait for the disk
PIECE_BYTES = 64 << 10  # of text in one record

# --- metrics ---------------------------------------------------------------------------------------------------------
LAST_METRICS_BYTES = 16 << 10  # read at the end of a file: enough for the last value of every name
PROGRESS_LINES = 400  # of the output's end, in which step, epoch and loss are looked for
METRICS_CALL_BYTES = 1 << 20  # of all files in one call
METRICS_FILE_BYTES = 8 << 10  # the least that a file gets of a call
METRIC_NAMES = 64  # in a line
METRIC_LETTERS = 64  # in a name
