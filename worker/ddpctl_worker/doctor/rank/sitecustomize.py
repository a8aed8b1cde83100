"""Runs in a rank before the user's program, and lets the doctor see it from outside.

The shim of the run starts the rank with the folder of this file first on PYTHONPATH. Nothing of that may be noticed:
the path and the variables are removed at once, a sitecustomize of the user's own runs as if this one were not there,
and children of the rank get nothing. Whatever fails here is ignored: the rank is then seen from outside only.

Once torch.distributed is imported, torch's own debug server is started on a Unix socket below the run's folder (torch
2.4 and newer). It is never shut down and never destroyed: both can hang a process in its exit.
"""

import os
import sys

TYPE_CHECKING = False  # as mypy knows it: an import more takes time, and stays in sys.modules
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Iterator, Optional, Tuple

_SELF, _FOLDER, _WATCHER = "DDPCTL_LOOK_PID", "DDPCTL_LOOK", "DDPCTL_LOOK_BY"
_HAD_PATH = "DDPCTL_LOOK_PATH"  # not empty where the user has set PYTHONPATH
_TORCH = "torch.distributed.distributed_c10d"
_STACK_SIGNAL = 40  # a real-time signal that nothing else is known to use
_DUMPS = "nccl"  # where torch writes NCCL's record, below the folder for this rank
_ENTRIES = "300"  # of the flight record: as many as can be read every few seconds at next to no cost
_PR_SET_PTRACER = 0x59616D61
_SHARE = 4  # the servers of all ranks of this host may take a quarter of the threads that are free
_UNSEEN = 4096  # threads: taken for a pod's limit, which its containers cannot read (the default of OpenShift)
_SPARE = 32  # threads that must be left to the rank, and to the other ranks that start at this moment
_TURN_S = 2.0  # to wait for the other ranks of this host, each of which takes some 20 ms
_HIGH = 250  # a descriptor that no program expects to get: it expects 3 for the first file it opens


def _leave_no_trace() -> "Optional[Tuple[str, str]]":
    """The folder for this rank, and the pid of the supervisor; None in any process but the rank itself."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if one != here]
    sys.path_importer_cache.pop(here, None)
    pid, folder, watcher, had_path = (os.environ.pop(name, "") for name in (_SELF, _FOLDER, _WATCHER, _HAD_PATH))
    rest = [one for one in os.environ.get("PYTHONPATH", here).split(os.pathsep) if one != here]
    if rest or had_path:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    return (folder, watcher) if folder and pid == str(os.getpid()) else None


def _stack_on_signal(folder: str) -> None:
    """Where no other process may read this one's memory, it writes its stack down itself when it is asked to."""
    known = "faulthandler" in sys.modules
    import faulthandler

    if not known:
        del sys.modules["faulthandler"]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    fd = _moved_up(os.open(os.path.join(folder, "%d.stack" % os.getpid()), flags, 0o600))
    # Not of all threads: that can crash a process whose other threads run Python at that moment.
    faulthandler.register(_STACK_SIGNAL, fd, all_threads=False, chain=False)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(_STACK_SIGNAL))


def _moved_up(fd: int) -> int:
    """The descriptor under a high number; as it is where that number is in use or above the limit."""
    try:
        os.fstat(_HIGH)
    except OSError:
        try:
            high = os.dup2(fd, _HIGH, inheritable=False)
        except OSError:
            return fd
        os.close(fd)
        return high
    return fd


class _AfterImport:
    """A finder that calls ``then`` once the module ``name`` has been imported, and is gone by then."""

    def __init__(self, name: str, then: "Callable[[], None]") -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != self._name:
            return None
        # A new list: another thread may be in the middle of an import, and would miss a finder if this one shrank.
        sys.meta_path = [one for one in sys.meta_path if one is not self]
        spec: "Any" = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)  # Python 3.11 and older take finders without it
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        try:
            self._watch(spec.loader)
        except Exception:  # there is none, or it is of an odd kind, or Python is older than 3.8
            pass
        return spec

    def _watch(self, loader: "Any") -> None:
        run, then = loader.exec_module, self._then

        def run_then_tell(module: "Any") -> None:
            del loader.exec_module  # the one of its class is back
            run(module)
            then()

        # Should the import fail: importlib leaves frames of its own out of the traceback, and so this one.
        run_then_tell.__code__ = run_then_tell.__code__.replace(co_filename="<frozen importlib._bootstrap>")
        loader.exec_module = run_then_tell


def _keep_a_record() -> None:
    """Torch reads this at its first collective. Before 2.11 it keeps no record by itself; what the user set stays.

    It is set where the server can give the record: that of gloo from 2.10 on, that of NCCL from 2.5 on. From 2.8 to
    2.10 NCCL goes by the older name, but with that gloo writes a warning.
    """
    newest, older = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
    if newest in os.environ or older in os.environ:
        return
    number = _version()
    if number >= (2, 10):
        os.environ[newest] = _ENTRIES
    elif (2, 5) <= number < (2, 8):
        os.environ[older] = _ENTRIES


def _version() -> "Tuple[int, ...]":
    """Major and minor of the torch that is being imported."""
    from torch.torch_version import __version__ as version

    return tuple(int(part) for part in version.split(".")[:2])


def _place_its_dump(folder: str) -> None:
    """When a collective of NCCL times out, torch writes the record to a file, whose name it reads only then: the stem
    and the rank. What the user set stays. The write is switched on where torch does so itself (2.7 and newer): before
    2.5 it can abort a rank at its end. With gloo nothing is ever written.
    """
    number = _version()
    if number >= (2, 7):
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    newest, older = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"  # from 2.8 or 2.9; from 2.2
    if number < (2, 2) or newest in os.environ or older in os.environ:
        return
    stem, rank = os.path.join(folder, _DUMPS, "rank_"), os.environ["RANK"]
    if number >= (2, 8):
        os.environ[newest] = stem
    if number < (2, 10):
        os.environ[older] = stem
    if os.path.exists(stem + rank):  # of an earlier attempt; torchfrtrace takes every name with rank_ in it
        os.replace(stem + rank, os.path.join(folder, _DUMPS, "earlier_" + rank))


def _serve(folder: str) -> None:
    """torch's own server, whose threads leave all signals to the user's.

    It starts as many threads as cpp-httplib has in a pool (CPPHTTPLIB_THREAD_POOL_COUNT), and one that listens. Where
    one of them cannot be started, it aborts the process. Since 2026 the pool grows to four times its size while none of
    its threads is idle: that takes as many questions at once, or as many that are never answered.
    """
    import signal

    os.fstat(2)  # where there is no stderr, which it writes to, a file of ours would get that number
    threads = max(8, os.sysconf("SC_NPROCESSORS_ONLN") - 1) + 1
    if threads * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * _SHARE > _free_threads():
        return
    turn = _take_turn(folder)
    if turn is None:
        return
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # a thread's own
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        if _may_start(threads + _SPARE):
            there = len(os.listdir("/proc/self/task"))
            _start_server(folder)
            _await_threads(there + threads)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        turn.close()


def _free_threads(root: str = "/") -> int:
    """How many more threads the limits allow, as far as they can be read. Raises OSError, ValueError.

    Each limit counts as if the threads of all users came under it: who else does is not known.
    """

    def read(path: str) -> str:
        with open(os.path.join(root, path), encoding="ascii", errors="replace") as file:
            return file.read()

    running = int(read("proc/loadavg").split()[3].split("/")[1])
    own = [line.split()[2] for line in read("proc/self/limits").splitlines() if line.startswith("Max processes")]
    limits = [*own, read("proc/sys/kernel/threads-max"), read("proc/sys/kernel/pid_max")]
    free = [int(one) - running for one in limits if one != "unlimited"]
    used, all_seen = running, False
    for folder in _control_groups(read("proc/self/cgroup")):
        try:
            most, used = read(folder + "/pids.max").strip(), int(read(folder + "/pids.current"))
        except FileNotFoundError:  # the root of all groups has no limit and, in version 2, no cgroup.events
            names = (os.path.join(root, folder, "cgroup." + name) for name in ("procs", "events"))
            all_seen = all_seen or [os.path.exists(name) for name in names] == [True, False]
        else:
            free += [int(most) - used] if most != "max" else []
    return min(free if all_seen else [*free, _UNSEEN - used])


def _control_groups(text: str) -> "Iterator[str]":
    """The folders of the groups that limit the threads of a process with this /proc/PID/cgroup, and those above."""
    for line in text.splitlines():
        _, kinds, path = line.split(":", 2)
        top = "sys/fs/cgroup" if not kinds else "sys/fs/cgroup/pids"
        if kinds and "pids" not in kinds.split(","):
            continue
        folder = top + path.rstrip("/")
        while folder != top:
            yield folder
            folder = os.path.dirname(folder)
        yield top


def _take_turn(folder: str) -> "Optional[socket.socket]":
    """One rank of a run at a time, until it closes this; None where that takes too long.

    The kernel binds an abstract name to one socket only, and frees it when its process ends. No disk is involved.
    """
    import socket
    import time

    found = os.stat(folder)
    turn = socket.socket(socket.AF_UNIX)
    until = time.monotonic() + _TURN_S
    while True:
        try:
            turn.bind("\0ddpctl-%d-%d" % (found.st_dev, found.st_ino))
            return turn
        except OSError:
            if time.monotonic() >= until:
                turn.close()
                return None
        time.sleep(0.005)


def _await_threads(number: int) -> None:
    """The server's own are started in the background: the next rank must find them there."""
    import time

    until = time.monotonic() + 0.2
    while len(os.listdir("/proc/self/task")) < number and time.monotonic() < until:
        time.sleep(0.001)


def _may_start(threads: int) -> bool:
    """Whether this number of threads can be started: a limit that cannot be read counts as well, or one of memory.

    Each waits at a semaphore until all are there, then ends: no Python runs in them.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    gate = ctypes.create_string_buffer(64)  # a sem_t has 32 bytes
    libc.sem_init(gate, 0, 0)
    started = []
    for _ in range(threads):
        thread = ctypes.c_ulong()
        if libc.pthread_create(ctypes.byref(thread), None, libc.sem_wait, gate) != 0:
            break
        started.append(thread)
    for _ in started:
        libc.sem_post(gate)
    for thread in started:
        libc.pthread_join(thread, None)
    return len(started) == threads


def _start_server(folder: str) -> None:
    """It is bound through the folder's descriptor: a socket's path ends at 107 bytes."""
    import ctypes

    from torch._C._distributed_c10d import _WorkerServer

    name = "%d.sock" % os.getpid()
    if os.path.exists(os.path.join(folder, name)):  # a pid that was used before; the server refuses an existing file
        os.unlink(os.path.join(folder, name))
    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        opened += [os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)]
        place, keep, null = opened
        os.dup2(null, 2)  # it announces itself on stderr
        try:
            server = _WorkerServer("/proc/self/fd/%d/%s" % (place, name))
        finally:
            os.dup2(keep, 2)
    finally:
        for fd in opened:
            os.close(fd)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _let_read(watcher: str) -> None:
    """Yama lets only a parent read another process's memory: the supervisor and what it starts may do so too."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(watcher)), 0, 0, 0)


def _when_torch_is_there(folder: str, watcher: str, pid: int) -> None:
    if os.getpid() != pid:  # a child that was forked before the import
        return
    for step in (
        _keep_a_record,
        lambda: _place_its_dump(folder),
        lambda: _serve(folder),
        lambda: _let_read(watcher),
    ):
        try:
            step()
        except Exception:  # an older torch, or another system: then less can be seen
            pass


def _begin() -> None:
    found = _leave_no_trace()
    if found is None:
        return
    (folder, watcher), pid = found, os.getpid()
    try:
        _stack_on_signal(folder)
    except Exception:  # no descriptor left, a disk that is away
        pass
    finder: "Any" = _AfterImport(_TORCH, lambda: _when_torch_is_there(folder, watcher, pid))
    sys.meta_path.insert(0, finder)


def _run_the_shadowed() -> None:
    """The sitecustomize that would have run without this one. What it raises is reported as it always is."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
_run_the_shadowed()
