"""The words that both sides share. The orchestrator imports nothing else of the worker's protocol.

The protocol
------------
The orchestrator starts a fixed command on the node (``PYTHON -I -c BOOTSTRAP``; see ddpctl.transport.bootstrap) and
writes to its stdin:

1. A JSON line, the *header*: ``{"banner", "nonce", "min_python", "base_dir", "hash", "size", "program"}``. The program
   is boot.py. It answers on stdout ``banner + " " + nonce + " "`` and a word: HAVE, NEED, FAIL (an error frame follows)
   or OLD with the interpreter's version. The orchestrator ignores any output of a shell profile before that. After NEED
   the program reads ``size`` bytes (a zip of the package), checks their SHA-256, and unpacks them to
   ``<base_dir>/worker/<hash>/``.
2. A JSON line, the *request*: ``{"verb": str, "host": str, "base_dir": str, ...arguments}``, then raw bytes if the verb
   takes a body.

The worker answers with *frames* on stdout. A frame is a JSON object on a line, of at most 4 MiB. An object with the key
``"raw": n`` is followed by exactly n raw bytes, at most 16 MiB. While a verb is at work the worker sends
``{KEEPALIVE: 1}`` every KEEPALIVE_S. The last frame is ``{"ok": true, "result": {...}}`` or
``{"ok": false, "error": {"kind", "message", "hint"}}``.

When the worker's stdin ends, a stream ends too, so that no tail outlives its reader. An orchestrator that closes only
stdin still gets the result: ``listen`` and ``rehearse`` are ended in this way.

A child of the worker serves a request with ``"again": true``. After the child's last frame the worker sends
``{"ready": status}`` with the child's wait status, and takes another request. It ends when its stdin ends.
"""

from __future__ import annotations

SCHEMA = 1
PROTOCOL = 1
BANNER = "DDPCTL/%d" % PROTOCOL
AGAIN = "again"
READY = "ready"
KEEPALIVE = "hb"
KEEPALIVE_S = 4.0  # between two keepalives of a verb at work
LINK_DEAD_S = 15.0  # a stream without a byte for this long is a dead link
MIN_PYTHON = (3, 8)
HAVE, NEED, FAIL, OLD = "have", "need", "fail", "old"  # the node's answers to the header

# --- states of a node and of a run -------------------------------------------------------------------------------
QUEUED = "queued"  # it waits for slots
PENDING = "pending"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
SUCCEEDED = "succeeded"
FAILED = "failed"
KILLED = "killed"
LOST = "lost"
UNREACHABLE = "unreachable"  # of a node: it does not answer, or another machine has its name
STALE = "stale"  # of a node: it runs, but its heartbeat is old
COMING = frozenset({QUEUED, PENDING, STARTING})  # no rank runs yet
ACTIVE = COMING | {RUNNING, STOPPING}
UNSUCCESSFUL = frozenset({FAILED, KILLED, LOST})
TERMINAL = UNSUCCESSFUL | {SUCCEEDED}
NODE_ONLY = frozenset({UNREACHABLE, STALE})  # of a node, never of a run

# --- the names of a run ------------------------------------------------------------------------------------------
SHORTEST_BEGINNING = 4  # letters of a run id, as for git: a shorter word is more likely a mistyped name


def begins(run: str, word: str) -> bool:
    """Return whether ``word`` may stand for the run id ``run``, as its beginning."""
    return len(word) >= SHORTEST_BEGINNING and run.startswith(word)


# --- reasons of a failure ------------------------------------------------------------------------------------------
EXITED = "exited"
SIGNALED = "signaled"
OOM = "oom"
KILLED_BY_USER = "killed_by_user"
NODE_LOST = "node_lost"
NODE_REBOOTED = "node_rebooted"
MACHINE_SHUTDOWN = "machine_shutdown"  # its first process ended all others
SESSION_ENDED = "session_ended"  # systemd ended the login session that the run was in; the machine goes on
LINK_LOST = "link_lost"  # the path between two hosts failed, not a rank or a host; the cause names both hosts
SUPERVISOR_LOST = "supervisor_lost"
RENDEZVOUS_TIMEOUT = "rendezvous_timeout"
SILENCE = "silence"
DISK_FULL = "disk_full"
SPAWN_FAILED = "spawn_failed"

# --- kinds of a worker's error ---------------------------------------------------------------------------------------
NO_SUCH_RUN = "no_such_run"
NO_SUCH_CHECKPOINT = "no_such_checkpoint"
OTHER_MACHINE = "other_machine"
LIVE = "live"  # a live run is in the way
BAD_REQUEST = "bad_request"
UNSAFE_PATH = "unsafe_path"  # another user's, writable by other users, a symbolic link, no folder
UNWRITABLE = "unwritable"
NO_SPACE = "no_space"
OS_ERROR = "os_error"  # any other error of the node's disk
CORRUPT = "corrupt"
NO_PORT = "no_port"
BUSY = "busy"
IN_USE = "in_use"  # the slots that a run wants are not free
TIMEOUT = "timeout"
INTERRUPTED = "interrupted"  # the controller went away
INSTALL = "install"
IMPORT = "import"  # an installed package cannot be imported
BUILD = "build"  # a package's own build failed: the message is the end of its output
BUG = "bug"  # a fault of the worker itself

# --- ports, and the results of a dial ---------------------------------------------------------------------------
USUAL_PORTS = (29500, 29999)  # first and last: torch's default and the ports after it
AGENT_PORTS = (29600, 29999)  # where the agents of a run with restarts listen
OK = "ok"
REFUSED = "refused"  # a reset came back
REJECTED = "rejected"  # a firewall or router on the way refused by ICMP
DROPPED = "dropped"  # no answer
NO_ROUTE = "no_route"  # the dialer has no route, or the address does not answer on the local network
WRONG_HOST = "wrong_host"  # another node of this preflight
FOREIGN = "foreign"  # another program
SILENT = "silent"  # accepted, without a greeting
CLOSED = "closed"  # accepted, then closed
ERROR = "error"
# ... and the results of a transfer: OK, or
SLOW = "slow"  # stopped early, with the rate so far
STALLED = "stalled"  # small messages pass, and big messages never arrive
BROKEN = "failed"

# From SIGTERM to SIGKILL, unless the job's `timeouts.stop` is set: the same as for torchrun and Slurm (KillWait).
STOP_GRACE_S = 30.0

# --- the output of ranks ---------------------------------------------------------------------------------------------
# These messages come from a rank that has lost its peer. The rank is a victim, and the culprit is elsewhere (seen with
# gloo and NCCL). A regular expression, to be used without regard to case.
VICTIM_WORDS = (
    r"Connection closed by (?:remote )?peer|Remote peer closed the connection|Connection reset by peer|Broken pipe|"
    r"Connection was likely closed|(?:Read|Write) error\b.*(?:timed out|No route to host|unreachable|aborted)|"
    r"Application timeout caused pair closure|"
    r"remote process exit(?:ed|ing)|NCCL Error 6|ncclRemoteError|unhandled system error|ncclSystemError|"
    r"communicator was aborted|Some NCCL operations have failed or timed out|"
    r"Timed out waiting \d+ms for (?:recv|send)|Socket Timeout|failed to pass monitoredBarrier|"
    r"failed to recv, got 0 bytes|Watchdog caught collective operation timeout|"
    r"wait timeout after \d+ms|client socket has timed out|Timed out after \d+ seconds waiting for clients|"
    r"waitForInput: .* timed out|possible application crash on rank|"
    r"RendezvousClosedError|The connection to the C10d store has failed"
)

# --- environment of a job's process -----------------------------------------------------------------------------------
ENV_JOB = "DDPCTL_JOB"
ENV_JOB_ID = "DDPCTL_JOB_ID"  # CLUSTER/PROJECT/JOB, because jobs of several projects may have the same name
ENV_RUN = "DDPCTL_RUN"
ENV_RUN_DIR = "DDPCTL_RUN_DIR"
ENV_OUTPUT_DIR = "DDPCTL_OUTPUT_DIR"
ENV_HOST = "DDPCTL_HOST"
ENV_HOSTS = "DDPCTL_HOSTS"  # of the attempt, by node rank, with the number of ranks: node0:8,node1:8
ENV_ATTEMPT = "DDPCTL_ATTEMPT"  # from 0, as torch counts restarts; records, documents and screens count from 1
ENV_CHECKPOINT_DIR = "DDPCTL_CHECKPOINT_DIR"
ENV_METRICS = "DDPCTL_METRICS"
ENV_COOKIE = "DDPCTL_COOKIE"

# The launcher of a script that starts its own processes. The interpreter is started once on each host, without torch's
# launcher, and counts as the rank of its node.
PLAIN = "python"

# In a NodePlan's argv, env or cwd these stand for the node's own folders: only the node can expand ``~``.
RUN_DIR_TOKEN = "{run_dir}"
OUTPUT_DIR_TOKEN = "{output_dir}"
CODE_DIR_TOKEN = "{code_dir}"
CHECKPOINT_DIR_TOKEN = "{checkpoint_dir}"

# Variables that a launcher silently takes as defaults, or that a job must not inherit from the login.
SCRUB_PREFIXES = ("PET_", "TORCHELASTIC_", "DDPCTL_")
SCRUB_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"}
    | {"ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"}
)
