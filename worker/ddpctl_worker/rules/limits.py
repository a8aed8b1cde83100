"""Every deadline, size and count of the rules. Times are seconds."""

from __future__ import annotations

# --- when a rank counts as stuck (verdict.py)
STALL_S = 30.0  # a wait of this length is reported, unless the job sets another limit
BLOCKED_S = 5.0  # when a person asks, a rank that is blocked for good is named after this wait already
SPIN_S = 10.0  # the same for a loop of pure Python that never leaves its function
BUSY_FACTOR = 3  # a rank in a loop of pure Python, in one function, is excused for this many times the stall
MOVING_FACTOR = 20  # a rank that works in another way is excused longer: an evaluation may stay on one line
BUSY_CPU = 10.0  # percent of a core: a rank that uses this much works
BUSY_BYTES = 64 << 10  # bytes a second: a rank that transfers this much works
LOOKS_APART_S = 3.0  # the hosts' looks of one round end within this time (rank_view.py)

# --- sentences of a verdict
NAMED_RANKS = 4  # places that are described one by one; beyond them only a count is given
NAMED_PROCESSES = 3  # the same for the processes of one rank

# --- flight records and stacks: a hostile or damaged file must not cost memory
MOST_COLLECTIVES = 300  # the newest collectives of a rank
LARGEST_NUMBER = 1 << 62  # of a collective, its size or its time; a greater number is no valid entry
MOST_RANKS = 1 << 20  # a greater rank is not valid
MOST_FRAMES = 64  # the innermost frames of a stack
LARGEST_LINE = 1 << 31  # number of a line in a source file

# --- metrics
LEAST_POINTS = 4  # of a thinned series: its first, last, lowest and highest point

# --- progress in the output (progress.py)
PROGRESS_LINE_LETTERS = 2000  # a longer line is no line about the progress
