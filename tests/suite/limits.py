"""Every deadline, budget and size of the suite."""

from __future__ import annotations

import os

# Seconds of CPU, with the CPU of ended child processes, that a test of `make unit` may use. The aim is 0.5 s. The limit
# is six times as much, because a busy machine counts the same work as two or three times the CPU time.
UNIT_CPU_S = 3.0

# Additions in a loop, and the seconds of CPU that they take on the quiet machine of docs/benchmarks.md. A test over its
# budget is compared with this loop, because other users of the machine can make all work take three times as long.
REFERENCE_ADDITIONS = 1_000_000
REFERENCE_S = 0.07

# Seconds until a test counts as stuck. These are guards, not measurements: the tests should take a tenth of this time.
UNIT_TIMEOUT_S = 60
TEST_TIMEOUT_S = 240
FULL_TIMEOUT_S = 600

# Every guard of the suite waits this many times as long as its test names, because other users can slow the machine
# down at any time of a run. A machine that is slow at the start of a run gets its own slowness as factor, up to the
# second number. The wait costs nothing unless a test is stuck.
LEAST_STRETCH = 3.0
MOST_STRETCH = 5.0

# Tests that import torch or train. A third process would only make the deadlines of the first two late.
HEAVY_AT_ONCE = max(2, os.cpu_count() or 1)

# The pause after a look for a recorded fact is this many times as long as the look, which leaves processor time to the
# awaited work, and at most so many seconds long.
PAUSE_PER_LOOK = 3
LONGEST_PAUSE_S = 0.5

# Seconds between two looks for a free slot.
SLOT_LOOK_S = 0.05

# A test with a recorded duration of this many seconds is a group of its own. Shorter tests go with their file, so that
# they share its fixtures.
SPLIT_S = 2.0

# The duration of a test that has never been recorded.
UNKNOWN_S = 0.02

# Shorter durations are not recorded: the file stays small, and changes rarely.
RECORD_S = 1.0

# Seconds that the processes of a test have for ending by themselves after the test.
LEAVE_S = 10.0

# Parts that the tests of `make test-all` are divided into; continuous integration runs a single part for each commit.
SHARES = 5
