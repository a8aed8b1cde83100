"""Every deadline, period and size of the gang. Times are seconds."""

from __future__ import annotations

# --- lines on the wire (wire.py, base.py)
MAX_LINE = 1 << 20  # bytes of a message, such as a proposal for thousands of hosts; a longer line ends the connection
MAX_HELLO = 1 << 10  # bytes that are read before the other side has proved the key
MAX_MESSAGE = 255 << 10  # bytes of a word of the doctor, which every rank's host may send
MAX_MESSAGES = 200  # words of the doctor that wait to be sent
MAX_OUT = 2 << 20  # bytes that wait on a connection; a member that reads nothing is cut off

# --- the thread of hub and members (base.py)
BEAT_S = 1.0  # between two heartbeats
LOOP_S = 0.25  # between two turns of the loop, unless a message or the supervisor wakes it
UNDECIDED_LOOP_S = 0.1  # the same while the hub waits for a verdict or for goodbyes
ENDING_LOOP_S = 0.02  # the same once there is a verdict, or while a member waits for the answer to its goodbye
GOODBYE_S = 5.0  # how long a goodbye waits for its answer
RECOVERED_S = 30.0  # a loop that ran for this long has overcome its fault
FAULT_PAUSE_S, MOST_FAULT_PAUSE_S = 0.1, 2.0  # before a loop starts again after a fault; doubled each time
FAULTS_S = 10.0  # a loop that fails again and again for this long ends the run
NAP_S = 4.0  # a loop that did not turn for this long was asleep: it turns four times a second

# --- a member's connection (member.py)
CONNECT_S = 3.0  # to connect, and for each answer of the handshake
RETRY_S = 0.3  # between two attempts to connect
RECONNECT_S = 4.0  # without a message from the hub, a member tries a new connection
ALONE_S = 1.0  # how long a member that never met the hub tries to say goodbye
MEET_S = 10.0  # the same after a success: the hub would report a node that never came as missing

# --- the hub's listener (hub.py)
START_S = 120.0  # how long after the start a node may join, unless the run sets another limit
LISTEN_S = 0.5  # until the hub tries again to listen, without a port or a descriptor
MOST_LISTENS = 20  # attempts in a row: a port that is still taken after 10 s stays taken, and the run ends
ACCEPTS = 16  # connections that are accepted in a turn of the loop

# --- failure detector and verdict (failures.py)
SILENT_S = 12.0  # a node without a message for this long is lost; a machine may be paused for 10 s
LATE_S = 3.0  # a node without a message for this long may be lost
REJOIN_S = 5.0  # after the end of a connection the host lives, so its supervisor comes back within this time or never
STILL_S = 10.0  # a supervisor's loop that has not turned for this long is stuck; it turns once a second or more often
CULPRIT_S = 1.0  # how long a plausible cause waits for an earlier cause
VICTIMS_S = 8.0  # how long victims wait for their culprit; a starved node finds it seconds late
MUTE_S = 10.0  # the same while a living node has reported no failure
ENDED_S = 4.0  # how long victims of a rank that ended early wait, after the end of the last rank of the run
EARLY_S = 5.0  # a rank's connections may close this long before its process ends, and its peers fail at once
SLACK_S = 0.5  # between the finding that a node is lost and the verdict

# --- cut links between two members (cuts.py, cutwatch.py)
UNACKED_S = 10.0  # a link may be cut if its data is not acknowledged for this long
DIAL_S = 4.0  # a trial connection; the kernel sends its first packet again after 1 s and 3 s
FRESH_S = 8.0  # how long a finding counts; an end that still waits repeats it every few seconds
SETTLE_S = 4.0  # how long a cut link waits for findings about other links, to find the node with most cut links
LOOK_S = 3.0  # between two looks at the kernel's tables of connections
WAITING_LOOK_S = 1.0  # the same while data waits
MAX_LOOK_S = 30.0  # the same on a machine where a look takes much processor time, and after a fault
LOOK_SHARE = 400  # the pause after a look is at least this multiple of the look's processor time
LOOK_LATE_S = 3.0  # a look that comes this much too late: the machine was asleep, and may have missed an answer
SUSPECT_S = 6.0  # data that waits for this long makes a node dial the other end
SUSPECT_RETRANSMITS = 3  # if the data was also sent again this often
CALM_S = 10.0  # how long a node that answered is not dialled again
