"""Every deadline and size of the facts. Times are seconds, sizes are bytes."""

from __future__ import annotations

# --- the probe (probe.py)
DEFAULT_DEADLINE_S, MOST_DEADLINE_S = 5.0, 300.0  # of a question
REAP_S = 0.5  # for a killed child to go; a child that is stuck in the kernel is left behind
PROGRAM_MARGIN_S = 1.0  # a program that a question starts ends so long before the question's deadline
LEAST_PROGRAM_S = 1.0  # but may always take so long; a second is enough for every healthy program
LEAST_SMI_S = 0.5  # the same for each of the several calls of nvidia-smi and systemctl

# --- GPUs
GPU_USE_S = 2.0  # nvidia-smi may take a second, and may hang
NVIDIA_SMI_S = 5.0  # the same for the table of ``top``, which may come later
DRIVER_S = 15.0  # for the driver's library; the driver's own start takes most of the time
UNKNOWN_FIELDS = 12  # that an old nvidia-smi may refuse; each call refuses a single field
GPU_PROCESSES = 256  # on a GPU
KNOWN_PROCESSES = 1000  # that are remembered with their owner and command
KERNEL_LINES = 100  # the last lines about GPU faults
LEAST_VRAM_BYTES = 4 << 30  # a processor's own graphics have less, and no job trains there
MOST_GIDS = 256  # as many as an adapter of Mellanox' has

# --- processes
MOST_LEFTOVERS = 200
COMMAND_LETTERS, GPU_COMMAND_LETTERS = 300, 60  # of a command line; in the table of ``top``

# --- software
MOST_INTERPRETERS = 64  # that are reported; interpreters with torch come first
KEPT_ENVIRONMENTS = 8  # with a remembered import
VARIABLE_LETTERS = 4096  # of a variable's value; bytes of a configuration file
LIBRARY_CACHE_BYTES = 16 << 20  # of /etc/ld.so.cache

# --- the job's files (job.py)
MOST_FILES = 20000  # of a folder that is counted or hashed
COUNT_S = 2.0  # for counting or hashing a folder
SCRIPT_BYTES = 256 << 10  # of a script's text
HASHED_BYTES = 64 << 20  # of a script, or of all code files of a folder
