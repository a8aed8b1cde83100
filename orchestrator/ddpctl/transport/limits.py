"""Every deadline, period and size of the transport, with its unit and its reason.

``_S`` are seconds, ``_MS`` milliseconds, ``_BYTES`` bytes, ``_LETTERS`` characters; all other values are counts.
"""

from __future__ import annotations

# --- opening a connection ---------------------------------------------------------------------------------------------
RESOLVE_S = 10.0  # an answer of the name server
RESOLVE_DEAD_S = 1.0  # the same, after several questions in a row without an answer
CONNECT_S = 8.0  # TCP, all addresses of a host together: the kernel tries at 0, 1, 3 and 7 s
CONNECT_NEWS_S = 3.0  # then the hosts without a connection are named
FIRST_BYTE_S = 10.0  # from the TCP connection to the server's first byte
REFUSAL_S = 0.5  # from a server's first words to its hanging up: within this time they are a refusal
HANDSHAKE_S = 20.0  # key exchange
AUTH_S = 20.0  # each answer in a login
GATE_S = 20.0  # after a longer wait for its turn a login dials again: sshd's LoginGraceTime has been running
AGENT_LIST_S = 5.0  # the list of the agent's keys; also the wait for another login's signature before disconnecting
AGENT_SIGN_S = 60.0  # a signature: a person may have to touch a token or to confirm
MATCH_EXEC_S = 10.0  # a command of `Match exec`
OPENSSH_LOGIN_S = 60.0  # a login by OpenSSH's ssh, from its start or from the last answer of a person
OPENSSH_LOOK_S = 0.05  # how often a login by ssh looks for its socket
OPENSSH_READ_S = 15.0  # ssh reads its configuration: longer than a command of `Match exec`
CONTROL_CHECK_S = 2.0  # a live ControlMaster on this machine answers at once
LOGIN_LOOK_S = 0.5  # how often a login checks whether its connection was closed
PASSWORD_TRIES = 3  # questions for the password of an account

# --- a call -----------------------------------------------------------------------------------------------------------
CHANNEL_S = 15.0  # opening a channel
BANNER_S = 20.0  # from the command to the worker's banner: includes the cold start of Python from a slow disk
STALL_S = 600.0  # without progress: a node may read ten gigabytes of an earlier transfer again from a slow disk
LEAST_BYTES = 1 << 20  # in STALL_S: less than the share of a host where a line of 1 Mbit/s feeds 64 hosts
QUIET_S = 30.0  # with nothing useful from a node until a note names it; longer than nearly every answer takes
QUIET_BYTES = 50 << 10  # useful in QUIET_S: the rate of LEAST_BYTES in STALL_S
ENDED_S = 2.0  # from a worker's answer to its end
EXIT_CODE_S = 5.0  # from the end of a worker's output to its exit status
READY_S = 5.0  # from a worker's answer until it takes another request
POLL_S = 0.25  # how often a waiting call checks its ``cancel`` and the sender of its body
PATIENT_S = 2.0  # how often a call without either wakes up; data and the end of the connection wake it at once
RESULT_LOOK_S = 0.5  # how often the main thread wakes up while it waits for hosts: Ctrl-C may reach another thread

# --- ending -----------------------------------------------------------------------------------------------------------
DYING_S = 2.0  # from the end of a channel to the end of its connection, where the connection is the cause
ENDING_S = 2.5  # from the end of a command's input to the end of all its processes (exec_guard.py)
CLOSE_S = 3.0  # closing all connections of a fleet
LOCAL_END_S = 0.5  # from the end of its input to the end of a worker on this machine
LOCAL_TERM_S = 0.5  # from SIGTERM to the end of its session
LOCAL_KILL_S = 5.0  # from SIGKILL to its exit status: a process that waits for a disk ends late
PROXY_END_S = 1.0  # from SIGTERM, or the end of its output, to the end of a ProxyCommand
PROXY_KILL_S = 5.0  # from SIGKILL to the exit status of a ProxyCommand

USER_TIMEOUT_MS = 8_000  # unacknowledged bytes of this age end a TCP connection
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 5, 3, 3

# --- how many at once -------------------------------------------------------------------------------------------------
DIALS = 512  # TCP connections that are being opened: waiting is their only cost
NAMES = 64  # questions to the name server: hundreds would overload a small server
LOGINS = 32  # key exchanges and logins, all hosts
LOGINS_BEHIND_JUMP = 8  # logins behind a jump host, or to a server: sshd drops more (MaxStartups)
PROXIES = 8  # ProxyCommands during their login: all may go through one sshd, which drops more
TUNNELS = 64  # tunnels that are being opened through one jump host: waiting is their only cost too
WORKERS = 32  # hosts that ``Fleet.map`` works on
CHANNELS = 8  # commands on one connection: sshd allows 10 (MaxSessions)
PROXY_FILES = 4  # descriptors of a host behind a ProxyCommand: two during its start, two for good
OPENSSH_FILES = 8  # descriptors of a host whose connection OpenSSH holds: three each for the connection and a command
SPARE_FILES = 64  # descriptors that are not connections

# --- retries ----------------------------------------------------------------------------------------------------------
DROPPED_RETRIES = 3  # a login, only when the server hangs up before its first word
DROPPED_PAUSE_S = 0.3, 0.9  # a random number between these, doubled each time: hosts must not come back all at once
SESSION_RETRIES, SESSION_PAUSE_S = 5, 0.1  # a refused session: sshd counts an ended session for another moment
JUMP_DOWN_S = 5.0  # from the failure of a jump host to the next try
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 5.0  # following a host: doubled each time, without end
DOWNLOAD_TRIES, DOWNLOAD_PAUSE_S = 4, 1.0  # a wheel, resumed where it stopped: the pause is doubled each time

# --- sizes ------------------------------------------------------------------------------------------------------------
AGENT_BYTES = 256 << 10  # an agent's answer
NOISE_BYTES = 1 << 20  # output of a shell profile before the banner
BANNER_LINE_BYTES = 256  # the line of the banner itself
SERVER_BANNER_LETTERS = 4096  # the text of a server before the login
QUESTION_BYTES = 64 << 10  # a question of OpenSSH's ssh
EMPTY_QUESTIONS = 8  # messages of keyboard-interactive in a row that ask nothing
PROMPTS = 64  # questions of a server in one message of keyboard-interactive
PROMPT_BYTES = 4096  # output in which sudo may ask: it asks before the command starts, and its lecture fits in
OUTPUT_BYTES = 1 << 20  # of each stream of a plain command, its end
STDERR_BYTES = 64 << 10  # of a worker's stderr, its end
PROXY_STDERR_BYTES = 4096  # of a ProxyCommand's stderr, its end
CHANNEL_READ_BYTES = 1 << 21  # a read takes the whole window: after a partial read the rest would have to be moved
CHANNEL_WRITE_BYTES = 32_000  # fits into one packet
LOCAL_CHUNK_BYTES = 1 << 16  # a pipe's buffer on Linux
LINE_BYTES = 4 << 20  # a frame's JSON: parsed, it may take thirty times as much memory
RAW_BYTES = 16 << 20  # a frame's raw bytes
ERROR_LETTERS = 300  # an error message of OpenSSH's ssh
MESSAGE_LETTERS = 4000  # an error message of a worker
INCLUDE_DEPTH = 16  # nesting of Include in an ssh_config, as in OpenSSH
