"""Every deadline, period and size of the mesh. Times are seconds."""

from __future__ import annotations

# --- lines and transfers (wire.py)
LINE_LIMIT = 1024  # bytes of a line; a longer line is not the protocol
BULK_LIMIT = 64 << 20  # bytes of a push or pull
CHUNK = 1 << 16  # bytes that are sent or received at a time
SELECT_S = 0.1  # the longest wait for data before deadlines and the connection to ddpctl are checked

# --- dialling (dialer.py)
IN_FLIGHT = 64  # connections at the same time
CONNECT_S = 5.0  # enough for three SYNs: the kernel sends them at 0, 1 and 3 s
ANSWER_S = 10.0  # from the connection to the listener's answer

# --- listening (listener.py)
MAX_CONNECTIONS = 1024  # or half of the descriptors that this process may have, if that is less
IDLE_S = 20.0  # a connection without data for this long is closed
REST_S = 0.2  # a socket is left alone for this long if there is no descriptor for another connection
MAX_LISTEN_S = 600.0  # the longest time that a request may ask for
BIND_PAUSE_S = 0.1  # between two tries of a taken port
BIND_S = 2.0  # how long a taken port is tried: a preflight that has just ended may still hold it

# --- speed (speed.py)
ECHOES = 5  # round trips; the shortest counts
STALL_S = 5.0  # a transfer without progress for this long has stalled
PATIENCE_S = 0.5  # how long the next target waits for the present target
LEAST_PATIENCE_S, PATIENCE_SHRINKS = 0.05, 0.8  # after each slow target the wait shrinks: many must not add up
THREADS_S = 0.05  # between two checks whether a thread is free
TRANSFER_TICK_S = 0.2  # between two checks of a transfer that does not move
MAX_THREADS = 32  # targets that are measured at the same time
MAX_BULK_S = 6.0  # a transfer; the bytes that have arrived by then give the rate
MTU_BYTES = 64 << 10  # of the transfer that tries a packet size
MTU_STALL_S = 3.0  # such a transfer without progress has stalled

# --- reading the firewall (firewall.py)
READ_S = 8.0  # a tool that prints the rules
MAX_RULES = 8 << 20  # bytes of its output

# --- the rehearsal (rehearse.py)
MAX_S = 900.0  # the longest deadline that a request may set
GRACE_S = 3.0  # from SIGTERM to SIGKILL
CONNECTED_LOOK_S = 1.0  # between two looks at the launcher's connections, until there is a connection
CLOSED_PAUSE_S = 0.05  # between two looks at a launcher with closed output, which ends soon
TAIL_LINES = 40  # of the output, for the user
NCCL_LINES = 60  # of NCCL's own words about its network
