"""Runs in a rank before the user's program, and prepares the rank for looks from outside.

The run's shim starts the rank with the folder of this file first on PYTHONPATH. The user's program must not notice:

- The path and the variables are removed at once.
- A sitecustomize of the user runs as if this file were not there.
- Children of the rank inherit nothing.
- Every failure here is ignored; the doctor then has less to see.

Once torch.distributed is imported, torch's own debug server (torch 2.4 and newer) starts on a Unix socket in the run's
folder. It is never shut down and never destroyed, because both can hang a process at its exit.
"""

import os
import sys

TYPE_CHECKING = False  # mypy takes it for true; importing typing would take time and stay in sys.modules
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Optional, Tuple

_SELF, _FOLDER, _WATCHER = "DDPCTL_LOOK_PID", "DDPCTL_LOOK", "DDPCTL_LOOK_BY"
_HAD_PATH = "DDPCTL_LOOK_PATH"  # not empty if the user has set PYTHONPATH
_TORCH = "torch.distributed.distributed_c10d"
_STACK_SIGNAL = 40  # a real-time signal without a known use
_DUMPS = "nccl"  # where torch writes NCCL's record, below the folder for this rank
_ENTRIES = "300"  # of the flight record: as many as can be read every few seconds at next to no cost
_PR_SET_PTRACER = 0x59616D61
_SHARE = 4  # the servers of all ranks of this host may take a quarter of the threads that are free
_UNSEEN = 4096  # threads: the assumed limit of a pod, which its containers cannot read (OpenShift's default)
_SPARE = 32  # threads that must be left to the rank, and to the other ranks that start at this moment
_TURN_S = 2.0  # to wait for the other ranks of this host, each of which needs about 20 ms
_HIGH = 250  # a descriptor that no program expects: a program may expect 3 for its first file


def _leave_no_trace() -> "Optional[Tuple[str, str]]":
    """Return the folder for this rank and the supervisor's pid, or ``None`` in a process that is not the rank."""
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
    """Write the stack into a file on a signal, for hosts where no other process may read the rank's memory."""
    known = "faulthandler" in sys.modules
    import faulthandler

    if not known:
        del sys.modules["faulthandler"]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    fd = _moved_up(os.open(os.path.join(folder, "%d.stack" % os.getpid()), flags, 0o600))
    # The main thread only: a dump of all threads can crash a process while other threads run Python.
    faulthandler.register(_STACK_SIGNAL, fd, all_threads=False, chain=False)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(_STACK_SIGNAL))


def _moved_up(fd: int) -> int:
    """Move the descriptor to a high number; keep it if that number is in use or above the limit."""
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
    """A finder that calls ``then`` after the import of the module ``name``. Before that it removes itself."""

    def __init__(self, name: str, then: "Callable[[], None]") -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != self._name:
            return None
        # A new list: another thread may be importing, and would miss a finder if the list shrank.
        sys.meta_path = [one for one in sys.meta_path if one is not self]
        spec: "Any" = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)  # Python 3.11 and older accept finders without it
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        try:
            self._watch(spec.loader)
        except Exception:  # no loader, an unusual loader, or a Python older than 3.8
            pass
        return spec

    def _watch(self, loader: "Any") -> None:
        run, then = loader.exec_module, self._then

        def run_then_tell(module: "Any") -> None:
            del loader.exec_module  # the method of its class is back
            run(module)
            then()

        # If the import fails, importlib leaves its own frames out of the traceback, and with this name also this frame.
        run_then_tell.__code__ = run_then_tell.__code__.replace(co_filename="<frozen importlib._bootstrap>")
        loader.exec_module = run_then_tell


def _keep_a_record() -> None:
    """Switch on torch's record of collectives, unless the user has set its size. torch reads the size at its first
    collective.

    Before 2.11 torch keeps no record by default. The record is switched on for versions with a server that can return
    it: gloo's from 2.10 on, NCCL's from 2.5 on. From 2.8 to 2.10 NCCL reads the older name, but with that name gloo
    prints a warning.
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
    """Return major and minor of the torch that is being imported."""
    from torch.torch_version import __version__ as version

    return tuple(int(part) for part in version.split(".")[:2])


def _place_its_dump(folder: str) -> None:
    """Choose the file into which torch writes its record when a collective of NCCL times out.

    torch reads the file's stem only then, and appends the rank. A stem set by the user stays. The dump is switched on
    where torch does so by default (2.7 and newer): before 2.5 it can abort a rank at its end. With gloo torch writes no
    dump.
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
    if os.path.exists(stem + rank):  # from an earlier attempt; torchfrtrace reads every file with rank_ in its name
        os.replace(stem + rank, os.path.join(folder, _DUMPS, "earlier_" + rank))


def _serve(folder: str) -> None:
    """Start torch's own server. Its threads leave all signals to the user's threads.

    The server starts a listening thread and the threads of cpp-httplib's pool (CPPHTTPLIB_THREAD_POOL_COUNT). If a
    thread cannot be started, it aborts the process. Since 2026 the pool grows to four times its size while all its
    threads are busy. That needs as many questions at the same time, or as many questions that are never answered.
    """
    import signal

    os.fstat(2)  # the server writes to stderr: without stderr, a file of ours would get the number 2
    threads = max(8, os.sysconf("SC_NPROCESSORS_ONLN") - 1) + 1
    if threads * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * _SHARE > _free_threads():
        return
    turn = _take_turn(folder)
    if turn is None:
        return
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # the signals that a thread causes itself
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        if _may_start(threads + _SPARE):
            there = len(os.listdir("/proc/self/task"))
            _start_server(folder)
            _await_threads(there + threads)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(turn)


def _free_threads(root: str = "/") -> int:
    """Return how many more threads the limits allow, as far as the limits can be read. Raises OSError, ValueError.

    Each limit is compared with the threads of all users, because the number of threads under it is unknown.
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
        except FileNotFoundError:  # the root group has no limit and, in version 2, no cgroup.events
            names = (os.path.join(root, folder, "cgroup." + name) for name in ("procs", "events"))
            all_seen = all_seen or [os.path.exists(name) for name in names] == [True, False]
        else:
            free += [int(most) - used] if most != "max" else []
    return min(free if all_seen else [*free, _UNSEEN - used])


def _control_groups(text: str) -> "Iterator[str]":
    """Yield the cgroup folders that limit the threads of a process with this /proc/PID/cgroup, from below."""
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


def _take_turn(folder: str) -> "Optional[int]":
    """Wait for this rank's turn, which lasts until it closes the descriptor. ``None`` if the wait is too long.

    No other account reaches the lock: the folder has mode 0700. The kernel frees the lock when the process ends.
    """
    import fcntl
    import time

    turn = os.open(os.path.join(folder, "turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _TURN_S
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return turn
        except OSError:
            if time.monotonic() >= until:
                os.close(turn)
                return None
        time.sleep(0.005)


def _await_threads(number: int) -> None:
    """Wait for the server's threads, which start in the background: the next rank must be able to count them."""
    import time

    until = time.monotonic() + 0.2
    while len(os.listdir("/proc/self/task")) < number and time.monotonic() < until:
        time.sleep(0.001)


def _may_start(threads: int) -> bool:
    """Return whether that number of threads can be started: there may be limits that cannot be read, also of memory.

    Each thread waits at a semaphore until all have started, then ends. No Python runs in the threads.
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
    """Start the server on a socket that is named through the folder's descriptor: a socket's path ends at 107 bytes."""
    import ctypes

    from torch._C._distributed_c10d import _WorkerServer

    name = "%d.sock" % os.getpid()
    if os.path.exists(os.path.join(folder, name)):  # a reused pid; the server refuses an existing file
        os.unlink(os.path.join(folder, name))
    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        opened += [os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)]
        place, keep, null = opened
        os.dup2(null, 2)  # the server prints a line on stderr
        try:
            server = _WorkerServer("/proc/self/fd/%d/%s" % (place, name))
        finally:
            os.dup2(keep, 2)
    finally:
        for fd in opened:
            os.close(fd)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _let_read(watcher: str) -> None:
    """Let the supervisor and its children read this process's memory; Yama permits only a parent to do so."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(watcher)), 0, 0, 0)


def _when_torch_is_there(folder: str, watcher: str, pid: int) -> None:
    if os.getpid() != pid:  # a child forked before the import
        return
    for step in (
        _keep_a_record,
        lambda: _place_its_dump(folder),
        lambda: _serve(folder),
        lambda: _let_read(watcher),
    ):
        try:
            step()
        except Exception:  # an older torch or another system: the doctor sees less
            pass


def _begin() -> None:
    found = _leave_no_trace()
    if found is None:
        return
    (folder, watcher), pid = found, os.getpid()
    try:
        _stack_on_signal(folder)
    except Exception:  # no free descriptor, or the disk is gone
        pass
    finder: "Any" = _AfterImport(_TORCH, lambda: _when_torch_is_there(folder, watcher, pid))
    sys.meta_path.insert(0, finder)


def _run_the_shadowed() -> None:
    """Run the sitecustomize that would have run without this file. Its exceptions are reported as usual."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
_run_the_shadowed()
