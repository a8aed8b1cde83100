"""Every deadline, period and size of the code for this machine. Times are seconds."""

from __future__ import annotations

# --- connections (acceptor.py)
BACKLOG = 1024  # connections that the kernel holds: more than a flood brings while this process does not run
HELLO_S = 1.0  # for the first bytes
PROOF_S = 5.0  # for the whole proof, over a slow link too
IDLE_S = 30.0  # then a proved connection without a question is closed; a peer asks every other second
MOST_STRANGERS = 128  # connections whose other side has not proved yet that it belongs to the run
MOST_AT_WORK = 256  # threads
MOST_IDLE = 1024  # proved connections that wait for the next question: one for each host that polls
ACCEPTS_AT_ONCE = 64  # connections in a row, before the next read of the earlier connections
NO_DESCRIPTOR_PAUSE_S = 0.2  # without a descriptor for a connection, and after a fault
IDLE_LOOP_S = 3600.0  # at most, between two turns of the loop when no deadline is near

# --- connections by strangers (strangers.py)
MOST_ADDRESSES = 1000  # counted separately; a flood may come from millions
SHOWN_ADDRESSES = 3  # in the record and in the log
STRANGERS_RECORD_S = 5.0  # between two writes of the record, while strangers connect
STRANGERS_LOG_S = 60.0  # between two lines in the log

# --- questions over a Unix socket (answer_socket.py)
MOST_QUESTIONS = 16  # at one time: each costs a look at the ranks
ANSWER_BYTES = 16 << 20
ANSWER_S = 5.0  # a look at the ranks takes a second, and three where a rank does not answer

# --- helper processes (child.py, tool.py)
MESSAGE_READ_BYTES = 64 << 10  # in one read: as much as a pipe holds
OUTPUT_BYTES = 256 << 10  # of either stream of a helper program
KILLED_TOOL_GONE_S = 0.5  # a killed helper program is gone

# --- processes of a run (processes.py, cgroup.py)
CHASE_S = 0.02  # in one kill, for children that appear while their siblings are killed
NO_LIMIT = 1 << 60  # bytes: version 1 of control groups gives a number near 2**63 for no limit
OOM_LOOK_S = 0.5  # between two looks at the kernel's counter of OOM kills

# --- files (fs.py)
LOCK_PAUSE_S = 0.1  # between two attempts to take a lock

# --- faults that may pass (notes.py)
FAULT_PATIENCE_S = 30.0  # a fault without a break for so long will not pass
FAULT_PAUSE_S = 0.1  # before the next attempt

# --- the clocks of other hosts (clocks.py)
CLOCK_SAMPLES = 30  # round trips that are kept
CLOCK_DRIFT = 15e-6  # seconds that a clock may gain or lose in a second (PHI of RFC 5905)
