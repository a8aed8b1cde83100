"""Every deadline, period and size of the commands."""

from __future__ import annotations

# --- signals (interrupts.py)
AGAIN_S = 0.02  # seconds until a signal is sent again whose exception Python ignored: by then the main thread goes on

# --- completion (complete.py): a person waits at the Tab key
COMPLETED_RUNS = 50  # newest run ids that are proposed
INVENTORY_BYTES = 64 << 10  # of the inventory file that are searched for names: more takes too long at the Tab key

# --- the output of a run (output.py, follow.py)
TAIL_LINES = 50  # that `tail` prints unless its options select otherwise
MOST_LINES = 999_999_999  # that `tail -n` takes: more lines than any log has
RANK_SPAN = 100_000  # ranks in a single range of --rank: a longer range is a mistake, and would fill the memory
SWITCH_S = 0.0001  # seconds between two thread switches; Python's default is 5 ms

# --- the live screen (top.py)
CONNECT_S = 3.0  # seconds for the quick hosts, before the screen takes the terminal
OPENED_LINES = 200  # of its output, when a run is opened

# --- commands on nodes (nodes.py) and benchmarks (bench.py)
EXEC_S = 300.0  # default seconds of `exec --timeout`
BENCH_S = 30.0  # default seconds of `bench scaling --seconds`

# --- names, in letters: a job and a project have 63 at most
JOB_LETTERS = 63
FOLDER_LETTERS = 58  # of the folder's name in a new project, which gets a dash and four digits more
