"""Every deadline and limit of the transport, and every retry of the control plane: seconds, bytes, or a count."""

from __future__ import annotations

RESOLVE_S = 10.0  # a name server's answer
RESOLVE_DEAD_S = 1.0  # the same, once several questions in a row found no server alive
CONNECT_S = 10.0  # TCP, all addresses of a host together
FIRST_BYTE_S = 10.0  # from the TCP connection to the server's first byte
DYING_S = 0.5  # from the end of a channel to the end of the connection that died under it
HANDSHAKE_S = 20.0  # key exchange
AUTH_S = 20.0  # each answer in a login
GATE_S = 20.0  # a login that waited longer for its turn dials again: sshd's LoginGraceTime has been running
AGENT_LIST_S = 5.0  # the agent's keys; also the wait for another login's signature before the connection is let go
AGENT_SIGN_S = 60.0  # a signature: a person may have to touch a token or to confirm
MATCH_EXEC_S = 10.0  # a command of `Match exec`
CHANNEL_S = 15.0  # opening a channel
BANNER_S = 20.0  # from the command to the worker's banner: a cold interpreter on a slow disk fits in
ENDED_S = 2.0  # from a worker's answer to its end
READY_S = 5.0  # from a worker's answer until it takes another request
POLL_S = 0.25  # how often a waiting call looks at ``cancel`` and at its body's sender
PATIENT_S = 2.0  # how often one without either wakes up: whatever comes, and a link that ends, wakes it anyway
ENDING_S = 2.5  # from the end of a command's input to the end of all that it started (guarded.py)
CLOSE_S = 3.0  # closing all connections of a fleet

USER_TIMEOUT_MS = 8_000  # unacknowledged bytes this old end a TCP connection
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 5, 3, 3

DIALS = 512  # TCP connections being made at once: they cost nothing but waiting
NAMES = 64  # questions to the name server at once: hundreds would drown a small one
LOGINS = 32  # key exchanges and logins at once, all hosts
LOGINS_BEHIND_JUMP = 8  # of these behind one jump host, or sent to one: sshd drops more (MaxStartups)
PROXIES = 8  # ProxyCommands whose login is under way: they may all go through one sshd, which drops more
TUNNELS = 64  # tunnels being opened at once through one jump host: they too only wait
WORKERS = 32  # hosts that ``Fleet.map`` works on at once
CHANNELS = 8  # commands at once on one connection: sshd allows 10 (MaxSessions)

# What is tried again, how often, and after which pause.
DROPPED_RETRIES = 3  # a login, only when the server hangs up before its first word
DROPPED_PAUSE_S = 0.3, 0.9  # a random number between these, doubled each time: hosts must not come back all at once
SESSION_RETRIES, SESSION_PAUSE_S = 5, 0.1  # a refused session: sshd takes a moment to count one as ended
JUMP_DOWN_S = 5.0  # until a jump host that could not be reached is tried again
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 5.0  # following a host: doubled each time, without end
DOWNLOAD_TRIES, DOWNLOAD_PAUSE_S = 4, 1.0  # a wheel, resumed where it stopped: the pause is doubled each time
PASSWORD_TRIES = 3  # questions for one account's password

AGENT_BYTES = 256 << 10  # an agent's answer
NOISE_BYTES = 1 << 20  # what a shell profile may print before the banner
OUTPUT_BYTES = 1 << 20  # the end of each stream of a plain command that is kept
STDERR_BYTES = 64 << 10  # the end of stderr that is kept
LINE_BYTES = 4 << 20  # a frame's JSON: parsed, it may take thirty times as much
RAW_BYTES = 16 << 20  # a frame's raw bytes
MESSAGE_LETTERS = 4000  # of an error of a worker's own
DEPTH = 32  # of JSON whose shape is not known
