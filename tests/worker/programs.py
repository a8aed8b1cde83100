"""Programs for the ranks of a run, and checks of the processes that are left."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from tests.worker.node import WORKER, Node, eventually, processes_of

SLEEP = "import time; print('here', flush=True); time.sleep(300)"
# The head of a writer that ends before its call number argv[2] of the disk, as if it were killed there.
KILLED_AT_A_CALL = f"""
import os, sys
sys.path.insert(0, {WORKER!r})
left = int(sys.argv[2])

def refuse(*_):
    raise PermissionError(1, "no hard links here")

def counted(call):
    def count(*args, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), 9)
        return call(*args, **options)
    return count
"""
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(300)"
)
CHECKPOINT = """
import os, signal, sys, time
def save(number, frame):
    time.sleep(0.3)
    with open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], os.environ["RANK"]), "a") as file:
        file.write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(300)
"""
# Grandchildren that try to get away: two orphans in sessions of their own, the second with an empty environment.
RUNAWAYS = """
import os, subprocess, sys, time
code = "import time; time.sleep(300)  # " + sys.argv[0]
for env in (None, {}):
    parent = os.fork()
    if parent == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
        os._exit(0)
    os.waitpid(parent, 0)
print("here", flush=True)
time.sleep(300)
"""
FORKS = """
import os, time
print("here", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.01)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
"""
# The parent of each process of this chain ends at once: no process of the chain lives longer than a few milliseconds.
CHAIN = """
import os, sys, time
count = os.open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "chain"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
if os.environ["RANK"] == "0" and os.fork() == 0:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        os.setsid()
        os.write(count, b".")
        time.sleep(0.001)
        if os.fork():
            os._exit(0)
print("here", flush=True)
time.sleep(300)
"""

# Stops a single thread of a process, as a page fault on a hung disk would. The other threads go on.
STOP_THREAD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])
if libc.ptrace(0x4206, pid, None, None) or libc.ptrace(0x4207, pid, None, None):  # SEIZE, INTERRUPT
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)
print("stopped", flush=True)
while os.WIFSTOPPED(os.waitpid(pid, 0x40000000)[1]):
    pass
"""


def here(node: Node, run: str) -> None:
    """Every rank is past its imports and handlers."""
    eventually(lambda: sum(one["text"] == "here" for one in node.lines(run)) == 2, "the ranks are there")


def both_known(node: Node, run: str) -> dict[str, list[int]]:
    """Wait until the supervisor knows both ranks; return rank -> its pid and start time."""

    def ranks() -> dict[str, list[int]]:
        path = node.folder(run) / "processes.json"
        return dict(json.loads(path.read_text())["ranks"]) if path.exists() else {}

    eventually(lambda: len(ranks()) == 2, "both ranks are known")
    return ranks()


def nothing_left(node: Node, run: str) -> None:
    """Assert that the run has no process in /proc now, except its guardian.

    The ranks' scripts are named after the run, so the name finds every rank.
    """
    left = {pid: words for pid, words in processes_of(run).items() if "ddpctl-guardian" not in words}
    assert left == {}


def noted(node: Node, run: str) -> bool:
    """Whether the record of the process tree holds every process that there is."""
    try:
        known = {pid for pid, _ in json.loads((node.folder(run) / "processes.json").read_text())["tree"]}
    except FileNotFoundError:
        return False
    return {pid for pid, words in processes_of(run).items() if "ddpctl-guardian" not in words} <= known


def beats(node: Node, run: str, times: int = 2) -> None:
    """Wait until the supervisor has written its heartbeat so often.

    Between two heartbeats it looks at the files that other processes have written.
    """
    heartbeat = node.folder(run) / "heartbeat"
    for _ in range(times):
        before = heartbeat.stat().st_mtime_ns
        eventually(lambda before=before: heartbeat.stat().st_mtime_ns > before, "a heartbeat", 60)  # type: ignore[misc]


def watchers_end(node: Node, run: str) -> None:
    eventually(lambda: not processes_of(run), "guardian and supervisor end")


@contextlib.contextmanager
def thread_stopped(pid: int) -> Iterator[None]:
    """``pid`` is a thread's; that of a process is its main thread's. The other threads of the process go on."""
    stopper = subprocess.Popen([sys.executable, "-c", STOP_THREAD, str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        assert stopper.stdout is not None
        assert stopper.stdout.readline() == "stopped\n"
        yield
    finally:
        stopper.kill()
        stopper.wait()
        if stopper.stdout:
            stopper.stdout.close()


# A worker in the process group of the rank, as a data loader has it; without it the next batch fails. SIGTERM asks for
# a save, which takes a while. With FAILS, rank 1 fails at SIGTERM. A grandchild has left the session.
LOADER = """
import multiprocessing, os, signal, subprocess, sys, time
def batches(pipe):
    number = 0
    while True:
        pipe.send(number)
        number += 1
ours, theirs = multiprocessing.Pipe()
worker = multiprocessing.Process(target=batches, args=(theirs,), daemon=True)
worker.start()
theirs.close()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)  # " + sys.argv[0]], start_new_session=True)
asked = []
if os.environ["RANK"] == "1" and FAILS:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
else:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGCHLD, lambda *_: asked.append("a worker has died"))
print("here", flush=True)
while not asked:
    ours.recv()
with open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], os.environ["RANK"]), "a") as file:
    for _ in range(20):
        ours.recv()
        file.write(".")
        file.flush()
        time.sleep(0.1)
    file.write(str(asked))
worker.terminate()
"""
