"""Every deadline, period and size of the verbs that read or tidy. Times are seconds, sizes are bytes."""

from __future__ import annotations

# --- fetch
CHUNK_BYTES = 1 << 20  # of a file, in one frame

# --- tail
LOG_POLL_S = 0.04  # between two looks at a log that is followed
JUDGE_RUN_S = 2.0  # between two judgements of a quiet run without an exit record: its supervisor may be dead
LOG_FRAME_BYTES = 256 << 10  # of the log, in one frame
LINE_SEARCH_S = 2.0  # of processor time, for a pattern in one line

# --- top
PULSE_S = 2.0  # from one pulse to the next
FIRST_PULSE_S = 0.5  # until the first: a share of processor time needs two looks
READING_WAIT_S = 0.5  # for a file system or a driver, before the pulse is sent without it
GAUGE_SHARE = 0.003  # of a core, for each gauge: an expensive reading comes less often
ERROR_CHARACTERS = 200  # of a reading's error, in the row of its host
READING_LATE_S = 6.0  # a reading that takes longer is called late
MOST_RUNS = 100  # the newest runs
LOST_RUN_S = 60.0  # between two looks at a run that is over without an exit record: each reads all of /proc
LISTING_SETTLES_S = 3.0  # a file system's times may have steps of 2 s: until then the folder of runs is listed again
COMING_RUN_S = 600.0  # from the appearance of a run's folder to that of this host's part: a later part is not shown
LOG_END_BYTES = 64 << 10  # of a log, to see which rank wrote last
PROGRESS_LINES_OF_A_LOOK = 50  # the newest, in which step, epoch and loss are looked for: a millisecond

# --- history
SERIES_POINTS = 500  # of one series
ANSWER_POINTS = 40_000  # of all series together: about a megabyte
MOST_ATTEMPTS = 200  # the newest attempts
METRICS_BYTES = 128 << 20  # of all files together, about two million lines; of more, parts at even distances are read
METRICS_PARTS = 64  # of a file that is not read as a whole
METRICS_LINE_BYTES = 1 << 20  # a longer line is not read

# --- untracked
MOST_ENTRIES = 20_000  # of the working folder
UNTRACKED_S = 1.0  # for the walk through it: the folder may be a home folder, or on a slow disk
LARGEST_FILES = 3  # that are named

# --- gc
DAY_S = 86400.0
UNUSED_S = 3600.0  # a younger file may be on its way into use, whatever age the request names
GC_WAIT_S = 10.0  # for an installation, or for another gc
