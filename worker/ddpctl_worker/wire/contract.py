"""The words that both sides share. All that the orchestrator imports from the worker is in this file.

How they talk
-------------
The orchestrator starts one fixed command on the node (``PYTHON -I -c BOOTSTRAP``; see ddpctl.transport.bootstrap) and
writes to its stdin:

1. one JSON line, the *header*: ``{"banner", "nonce", "min_python", "base_dir", "hash", "size", "program"}``. The
   program is boot.py. On stdout it answers ``banner + " " + nonce + " "`` and HAVE, NEED, FAIL (one error frame
   follows) or OLD and the interpreter's version; whatever a shell profile printed before that is ignored. After NEED it
   reads ``size`` bytes (a zip of the package), checks their SHA-256 and unpacks them to ``<base_dir>/worker/<hash>/``.
2. one JSON line, the *request*: ``{"verb": str, "host": str, "base_dir": str, ...arguments}``, then raw bytes where the
   verb takes a body.

The worker answers with *frames* on stdout: one JSON object a line; an object with the key ``"raw": n`` is followed by
exactly n raw bytes; a line has 4 MiB at most, raw bytes 16 MiB. ``{KEEPALIVE: 1}`` comes every KEEPALIVE_S while a
verb is at work. The last frame is
``{"ok": true, "result": {...}}`` or ``{"ok": false, "error": {"kind", "message", "hint"}}``. When the worker's stdin
reaches its end a stream ends too, so that no tail outlives its reader. Who only closes that side still gets the result:
``listen`` and ``rehearse`` are brought to their end that way.

A request with ``"again": true`` is served by a child of the worker. After its last frame comes ``{"ready": status}``
with the child's wait status, and the worker takes another request; it ends when its stdin does.
"""

from __future__ import annotations

SCHEMA = 1
PROTOCOL = 1
BANNER = "DDPCTL/%d" % PROTOCOL
AGAIN = "again"
READY = "ready"
KEEPALIVE = "hb"
KEEPALIVE_S = 4.0  # how often a verb at work says so
LINK_DEAD_S = 15.0  # a stream without a byte for this long is a dead link
MIN_PYTHON = (3, 8)
HAVE, NEED, FAIL, OLD = "have", "need", "fail", "old"  # what the node answers to the header

# --- states of a node and of a run -------------------------------------------------------------------------------
PENDING = "pending"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
SUCCEEDED = "succeeded"
FAILED = "failed"
KILLED = "killed"
LOST = "lost"
UNREACHABLE = "unreachable"  # a node only: it cannot be asked now, or another machine answers to its name
STALE = "stale"  # a node only: it runs, but its heartbeat is old
TERMINAL = frozenset({SUCCEEDED, FAILED, KILLED, LOST})

# --- what a run is called ------------------------------------------------------------------------------------------
SHORTEST_BEGINNING = 4  # letters of a run id, as for git: fewer are more likely a name that was mistyped


def begins(run: str, word: str) -> bool:
    """Whether ``word`` may stand for the run id ``run``: it is the beginning of it."""
    return len(word) >= SHORTEST_BEGINNING and run.startswith(word)


# --- reasons of a failure ------------------------------------------------------------------------------------------
EXITED = "exited"
SIGNALED = "signaled"
OOM = "oom"
KILLED_BY_USER = "killed_by_user"
NODE_LOST = "node_lost"
NODE_REBOOTED = "node_rebooted"
LINK_LOST = "link_lost"  # no rank and no host is at fault, the path between two hosts is; the cause names both
SUPERVISOR_LOST = "supervisor_lost"
RENDEZVOUS_TIMEOUT = "rendezvous_timeout"
SILENCE = "silence"
DISK_FULL = "disk_full"
SPAWN_FAILED = "spawn_failed"

# --- kinds of a worker's error ---------------------------------------------------------------------------------------
NO_SUCH_RUN = "no_such_run"
NO_SUCH_CHECKPOINT = "no_such_checkpoint"
OTHER_MACHINE = "other_machine"
LIVE = "live"  # a run that has not ended is in the way
BAD_REQUEST = "bad_request"
UNSAFE_PATH = "unsafe_path"  # not ours, writable by others, a symbolic link, no folder
UNWRITABLE = "unwritable"
NO_SPACE = "no_space"
OS_ERROR = "os_error"  # any other trouble with the node's disk
CORRUPT = "corrupt"
NO_PORT = "no_port"
BUSY = "busy"
TIMEOUT = "timeout"
INTERRUPTED = "interrupted"  # the controller went away
INSTALL = "install"
IMPORT = "import"  # what was installed cannot be imported
BUILD = "build"  # a package's own build failed: the message is the end of what it said
BUG = "bug"  # a fault of the worker itself

# --- ports and what a dialer finds on them ---------------------------------------------------------------------------
USUAL_PORTS = (29500, 29999)  # torch's default and the ones after it: first and last
AGENT_PORTS = (29600, 29999)  # where the agents of a run with restarts listen
OK = "ok"
REFUSED = "refused"  # a reset came back
REJECTED = "rejected"  # a firewall or router on the way said no by ICMP
DROPPED = "dropped"  # nothing came back
NO_ROUTE = "no_route"  # the dialer has no route, or nobody answers at that address on the local network
WRONG_HOST = "wrong_host"  # another node of this preflight
FOREIGN = "foreign"  # another program
SILENT = "silent"  # accepted, and nothing said
CLOSED = "closed"  # accepted, and hung up
ERROR = "error"
# ... and of a transfer: OK, or
SLOW = "slow"  # stopped early, with the rate so far
STALLED = "stalled"  # small messages pass and big ones never arrive
BROKEN = "failed"

# From SIGTERM to SIGKILL, where the job's `timeouts.stop` says nothing else: as torchrun's and Slurm's (KillWait).
STOP_GRACE_S = 30.0

# --- what ranks say --------------------------------------------------------------------------------------------------
# A rank whose peer went away is the victim, and the culprit is elsewhere (seen with gloo, NCCL). A regular expression,
# whatever the case of its letters.
VICTIM_WORDS = (
    r"Connection closed by (?:remote )?peer|Remote peer closed the connection|Connection reset by peer|Broken pipe|"
    r"Connection was likely closed|(?:Read|Write) error\b.*(?:timed out|No route to host|unreachable|aborted)|"
    r"Application timeout caused pair closure|"
    r"remote process exit(?:ed|ing)|NCCL Error 6|ncclRemoteError|unhandled system error|ncclSystemError|"
    r"communicator was aborted|Some NCCL operations have failed or timed out|"
    r"Timed out waiting \d+ms for (?:recv|send)|Socket Timeout|failed to pass monitoredBarrier|"
    r"failed to recv, got 0 bytes|Watchdog caught collective operation timeout|watchdog got stuck for|"
    r"wait timeout after \d+ms|client socket has timed out|Timed out after \d+ seconds waiting for clients|"
    r"waitForInput: .* timed out|possible application crash on rank|"
    r"connectFullMesh failed|RendezvousClosedError|The connection to the C10d store has failed"
)

# --- environment of a job's process -----------------------------------------------------------------------------------
ENV_JOB = "DDPCTL_JOB"
ENV_JOB_ID = "DDPCTL_JOB_ID"  # CLUSTER/PROJECT/JOB: its name alone may be that of other projects' jobs, too
ENV_RUN = "DDPCTL_RUN"
ENV_RUN_DIR = "DDPCTL_RUN_DIR"
ENV_OUTPUT_DIR = "DDPCTL_OUTPUT_DIR"
ENV_HOST = "DDPCTL_HOST"
ENV_HOSTS = "DDPCTL_HOSTS"  # of the attempt, by node rank, each with its number of ranks: node0:8,node1:8
ENV_ATTEMPT = "DDPCTL_ATTEMPT"
ENV_CHECKPOINT_DIR = "DDPCTL_CHECKPOINT_DIR"
ENV_METRICS = "DDPCTL_METRICS"
ENV_COOKIE = "DDPCTL_COOKIE"

# The launcher of a script that starts its own processes: no launcher of torch's, the interpreter itself is started once
# on each host, and counts as a rank: that of its node.
PLAIN = "python"

# In a NodePlan's argv, env or cwd these stand for the node's own folders, which only the node can spell (``~``).
RUN_DIR_TOKEN = "{run_dir}"
OUTPUT_DIR_TOKEN = "{output_dir}"
CODE_DIR_TOKEN = "{code_dir}"
CHECKPOINT_DIR_TOKEN = "{checkpoint_dir}"

# Variables that a launcher takes as silent defaults or that a job must not inherit from the login.
SCRUB_PREFIXES = ("PET_", "TORCHELASTIC_", "DDPCTL_")
SCRUB_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"}
    | {"ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"}
)
