"""Looks at real processes: what is seen of each, in time, and that nothing happens to them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.doctor import look as looking
from ddpctl_worker.doctor import process as processes
from ddpctl_worker.doctor import server, stacks
from ddpctl_worker.doctor.look import Subject, Tools, look
from ddpctl_worker.doctor.stacks import Stacks
from ddpctl_worker.rules.frames import Thread as PythonThread
from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import C10D, MAIN, STEP
from tests.worker.node import eventually
from tests.worker.rules.test_flight import CONFIG, NCCL

GUARD_S = 120.0
PATIENCE_S = 20.0
PY_SPY = str(Path(sys.executable).with_name("py-spy"))
HERE = "print('here', flush=True)\n"
SLEEPS = "import time\n" + HERE + "def wait(): time.sleep(300)\nwait()"
SPINS = "def spin():\n    print('here', flush=True)\n    while True: pass\nspin()"
READS = "import sys\n" + HERE + "def read():\n    open(sys.argv[1]).read()\nread()"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], stdout=subprocess.PIPE)
child.stdout.readline()
{HERE}
child.wait()
"""
STACKS = """
import faulthandler, os, sys, time
faulthandler.register(40, open(os.path.join(sys.argv[1], f"{os.getpid()}.stack"), "a"), all_threads=False)
print("here", flush=True)
"""
STAYS = STACKS + "time.sleep(600)"
MOVES = STACKS + "while True:" + "\n    time.sleep(0.01)" * 9
# Until the file argv[2] is there; whether all sleeps were whole.
NAPS = f"""{STACKS}
whole = True
while whole and not os.access(sys.argv[2], os.F_OK):
    begun = time.monotonic()
    time.sleep(1.0)
    whole = time.monotonic() - begun >= 1.0
print(whole, flush=True)
"""


@contextlib.contextmanager
def program(code: str, *words: str, works: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line. ``works``: it never sleeps; else it is in its sleep, or waits."""
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            eventually(lambda: works or state_of(process.pid) == "sleeping", "it sleeps")
            yield process
        finally:
            children = processes.find_descendants(process.pid)
            process.send_signal(signal.SIGCONT)
            process.kill()
            for child in children:
                end(child)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state_of(pid) == "stopped", f"the stop of {pid}")


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

    eventually(lambda: state_of(pid) == "ended", f"the end of {pid}")


def state_of(pid: int) -> str:
    found = processes.look_at_process(pid)
    return "ended" if found is None else found.state


def of(tools: Tools, *pids: int, interval: float = 0.4) -> list[dict[str, Any]]:
    return look([Subject(rank, rank, pid) for rank, pid in enumerate(pids)], tools, interval)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The tools of a look, with more patience than in a run: on a busy machine a stack takes seconds."""
    monkeypatch.setattr(stacks, "by_py_spy", functools.partial(stacks.by_py_spy, seconds=PATIENCE_S))
    monkeypatch.setattr(stacks, "SIGNAL_S", PATIENCE_S)
    monkeypatch.setattr(looking, "LOOK_DEADLINE_S", 2 * PATIENCE_S)
    return Tools(str(tmp_path), PY_SPY)


def own(one: dict[str, Any]) -> list[Any]:
    """The innermost frame: the function's name."""
    return [frame[2] for frame in one["stack"]]


@pytest.mark.slow
def test_asleep(tools: Tools) -> None:
    with program(SLEEPS) as process:
        (found,) = of(tools, process.pid)
    assert (found["rank"], found["local_rank"], found["pid"], found["state"]) == (0, 0, process.pid, "sleeping")
    assert 200 < found["sleep_s"] <= 300
    assert own(found)[:2] == ["wait", "<module>"]
    assert found["cpu"] < 20
    assert not found["spins"]
    assert found["missing"] == ["no record of its collectives"]
    assert abs(found["now"] - time.time()) < 60


@pytest.mark.slow
def test_blocked_on_a_fifo(tools: Tools, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with program(READS, str(fifo)) as process:
        (found,) = of(tools, process.pid)
    assert found["state"] == "sleeping"
    assert found["sleep_s"] is None
    assert own(found)[0] == "read"
    assert found["waits_in"] in ("", "wait_for_partner", "fifo_open")  # the kernel may hide it


@pytest.mark.slow
def test_stopped(tools: Tools) -> None:
    with program(SLEEPS) as process:
        stop(process.pid)
        (found,) = of(tools, process.pid)
    assert found["state"] == "stopped"
    assert own(found)[0] == "wait"
    assert found["missing"] == []


@pytest.mark.slow
def test_spinning(tools: Tools) -> None:
    def spinning(pid: int) -> dict[str, Any] | None:
        """Where the machine is busy, a process may get no processor during a look."""
        (found,) = of(tools, pid, interval=1.0)
        return found if found["spins"] and found["cpu"] > 1 else None

    with program(SPINS, works=True) as process:
        found = eventually(lambda: spinning(process.pid), "it is seen to spin", 60.0)
    assert found["state"] == "running"
    assert own(found)[0] == "spin"


@pytest.mark.slow
def test_children(tools: Tools) -> None:
    with program(PARENT) as process:
        (pid,) = processes.find_descendants(process.pid)
        eventually(lambda: state_of(pid) == "sleeping", "its child sleeps")
        (found,) = of(tools, process.pid)
    (child,) = found["children"]
    assert child["state"] == "sleeping"
    assert 200 < child["sleep_s"] <= 300
    assert child["stack"][0][2] == "wait"


POLLS = "import time\n" + HERE + "def wait():\n    while True: time.sleep(0.05)\nwait()"
# As mp.spawn does: the main process waits for two children: the first waits in a collective, the second polls.
SPAWNS = """
import multiprocessing, sys, time
def train(rank, ready):
    ready.release()
    if rank == 0:
        from torch.distributed.distributed_c10d import barrier
        barrier()
    while True: time.sleep(0.05)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    ready = context.Semaphore(0)
    processes = [context.Process(target=train, args=(rank, ready)) for rank in range(2)]
    for one in processes: one.start()
    for one in processes: ready.acquire()
    time.sleep(0.3)
    print("here", flush=True)
    for one in processes: one.join()
"""


def polled_by(look: dict[str, Any]) -> list[int]:
    """The children that a look has seen polling."""
    return [child["pid"] for child in look["children"] if child["polls"]]


def look_with_polls(tools: Tools, pid: int) -> dict[str, Any] | None:
    """A look that has seen a child in the collective, and a child poll: where the machine is busy, a child may not run
    during a look."""
    (found,) = of(tools, pid, interval=1.0)
    waits = any("barrier" in own(child) for child in found["children"])
    return found if waits and polled_by(found) else None


@pytest.mark.slow
def test_polling(tools: Tools) -> None:
    with program(POLLS) as process:
        eventually(lambda: of(tools, process.pid, interval=1.0)[0]["polls"], "a sleep is seen to end", 60.0)
    with program(SLEEPS) as process:
        (found,) = of(tools, process.pid)
    assert not found["polls"]


@pytest.mark.slow
def test_processes_that_wait_for_each_other(tools: Tools, tmp_path: Path) -> None:
    """Found by their stacks; torch's operation is one of the same name and place."""
    folder = tmp_path / "site-packages" / "torch" / "distributed"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "distributed_c10d.py").write_text("import threading\ndef barrier(): threading.Event().wait()\n")
    script = tmp_path / "train.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(tmp_path / 'site-packages')!r})\n{SPAWNS}")
    with program(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") as process:
        found = eventually(lambda: look_with_polls(tools, process.pid), "a sleep is seen to end", 60.0)
    text = (
        "1 of 2 processes of rank 0 on node0 waits in barrier (train.py:9 in train); its process %d is at train.py:10 "
        "in train, where it sleeps and looks again"
    )
    polling = polled_by(found)
    assert len(polling) == 1
    made = diagnose([dict(found, host="node0")])
    assert [made.verdict] == [text % pid for pid in polling]
    assert made.suspects == [{"host": "node0", "rank": 0}]


@pytest.mark.slow
def test_ended(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "record_of", lambda folder, pid: end(pid))  # in the middle of the look
    with program(SLEEPS) as process:
        (meanwhile,) = of(tools, process.pid)
        process.wait()
        (before,) = of(tools, process.pid)
    assert meanwhile["state"] == "ended"
    assert (before["state"], before["missing"]) == ("ended", [])


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_where_py_spy_is_missing_and_no_signal_may_be_sent(tmp_path: Path) -> None:
    with program(SLEEPS) as process:
        (found,) = of(Tools(str(tmp_path), None), process.pid)
    assert "stack" not in found
    assert found["missing"][-1].startswith("no stack: py-spy is not on this host; ")


@pytest.mark.slow
def test_a_stopped_rank_is_not_asked_and_the_others_are_looked_at_at_once(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped rank would answer nothing, for as long as the question may take."""
    asked, together = [], threading.Barrier(7)

    def record_of(folder: str, pid: int) -> list[Any]:
        if pid not in asked:
            asked.append(pid)
            together.wait(GUARD_S)  # a look after the other would be BrokenBarrierError here
        return []

    monkeypatch.setattr(looking, "record_of", record_of)
    monkeypatch.setattr(looking, "LOOK_DEADLINE_S", GUARD_S)
    with contextlib.ExitStack() as all_of_them:
        pids = [all_of_them.enter_context(program(SLEEPS)).pid for _ in range(8)]
        stop(pids[3])
        found = of(tools, *pids)
    assert sorted(asked) == sorted({*pids} - {pids[3]})
    assert [one["state"] for one in found] == ["stopped" if rank == 3 else "sleeping" for rank in range(8)]
    assert [one["missing"] for one in found] == [[]] * 8


class Hang:
    """A call that hangs until its caller has given it up."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.outlasted = False

    def wait(self) -> None:
        self.outlasted |= not self._over.wait(GUARD_S)

    def end(self) -> None:
        """Fails where the hang was waited for. Returns once no thread of the look is left."""
        self._over.set()
        for one in threading.enumerate():
            if one.name.startswith("look-"):
                one.join(GUARD_S)
        assert not self.outlasted


@pytest.mark.slow
def test_a_look_that_hangs_is_left_behind(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Hang()
    monkeypatch.setattr(looking, "record_of", lambda folder, pid: hang.wait())
    monkeypatch.setattr(looking, "LOOK_DEADLINE_S", 0.3)

    def left(pid: int) -> dict[str, Any] | None:
        """Where the machine is busy, a look may not have begun by then."""
        (found,) = of(tools, pid, interval=0.2)
        return found if found["state"] != "unknown" else None

    with program(SLEEPS) as process:
        found = eventually(lambda: left(process.pid), "a look has begun, and hangs")
        hang.end()
    assert found["state"] == "sleeping"
    assert found["missing"] == ["the look at it was not over in time"]


@pytest.mark.slow
def test_a_look_of_a_moment(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that takes a second to see, and no child: that would take as long again."""
    monkeypatch.setattr(looking, "record_of", lambda folder, pid, seconds: [])
    with program(PARENT) as process:
        (found,) = of(tools, process.pid, interval=0.0)
    assert own(found)[0].endswith("wait")
    assert (found["state"], found["groups"], found["missing"]) == ("sleeping", {}, [])
    assert not set(found) & {"cpu", "below", "bytes", "wants_cpu", "children", "still"}
    assert abs(found["now"] - time.time()) < 60


@pytest.mark.slow
def test_what_is_known_so_far_can_be_asked_for(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Hang()

    def hangs(program: str, pid: int) -> Stacks:
        hang.wait()
        return Stacks(None, "")

    monkeypatch.setattr(looking, "record_of", lambda folder, pid, seconds: [])
    monkeypatch.setattr(stacks, "by_py_spy", hangs)
    with program(SLEEPS) as process:
        looks = looking.Looks([Subject(0, 0, process.pid)], tools, 0.0)
        assert [one["state"] for one in looks.results()] == ["unknown"]
        looks.run(0.3)
        eventually(lambda: "groups" in looks.results()[0], "the look has come to the stack")
        (found,) = looks.results()
        hang.end()
    assert (found["state"], found["groups"], found["missing"]) == (
        "sleeping",
        {},
        ["the look at it was not over in time"],
    )


def test_what_was_not_seen_is_not_called_ended(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pid: int) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(processes, "look_at_process", broken)
    (found,) = of(tools, os.getpid())
    assert found["state"] == "unknown"
    assert found["missing"] == ["the look at it failed: PermissionError('no')"]


@pytest.mark.slow
def test_nothing_happens_to_the_process(tools: Tools) -> None:
    """Neither its sleep nor its signals: by py-spy nothing, by the signal nothing that Python code would notice."""
    folder, go_on = tools.folder, Path(tools.folder, "go-on")
    with program(NAPS, folder, str(go_on)) as process:
        assert process.stdout is not None
        before = Path(f"/proc/{process.pid}/status").read_text()
        by_py_spy = of(tools, process.pid)[0]
        by_signal = of(Tools(folder, None, asked=True), process.pid)[0]
        after = Path(f"/proc/{process.pid}/status").read_text()
        go_on.touch()
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready
        assert process.stdout.readline() == "True\n"
        assert process.wait() == 0
    assert [own(one)[0] for one in (by_py_spy, by_signal)] == ["<module>"] * 2
    for name in ("SigCgt", "SigBlk", "SigIgn", "TracerPid"):
        assert [line for line in before.splitlines() if line.startswith(name)] == [
            line for line in after.splitlines() if line.startswith(name)
        ]


def record(backend: str) -> bytes:
    entry = {**NCCL, "profiling_name": f"{backend}:all_reduce"}
    return json.dumps({"pg_config": CONFIG if backend == "nccl" else {}, "entries": [entry]}).encode()


def asked(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[dict[str, Any], set[str]]:
    """A look at a rank with both records, and which were asked for."""
    answers = {"fr_trace_json": record("gloo"), "dump_nccl_trace_json": record("nccl")}
    heard = set()

    def ask(folder: str, pid: int, handler: str, seconds: float = 0.0) -> bytes:
        heard.add(handler.partition("?")[0])
        return answers[handler.partition("?")[0]]

    monkeypatch.setattr(server, "ask", ask)
    with program(code, str(folder)) as process:
        (found,) = of(Tools(str(folder), **{"py_spy": None, "asked": True, "nccl": True, **how}), process.pid)
    return found, heard


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("py_spy", [PY_SPY, None], ids=["py-spy", "signal"])
def test_the_record_of_nccl_comes_beside_that_of_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: str | None
) -> None:
    found, _ = asked(tmp_path, STAYS, monkeypatch, py_spy=py_spy)
    assert found["still"]
    assert sorted(found["groups"]) == ["0", "nccl:0"]
    assert found["groups"]["nccl:0"]["ranks"] == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("py_spy", [PY_SPY, None], ids=["py-spy", "signal"])
def test_a_rank_that_moves_is_not_asked_for_the_record_of_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: str | None
) -> None:
    """It would break a CUDA graph that is being captured."""

    def moving() -> set[str] | None:
        """A rank that gets no processor for a while looks as if it stood still."""
        found, heard = asked(tmp_path, MOVES, monkeypatch, py_spy=py_spy)
        return heard if found.get("still") is False else None

    assert eventually(moving, "it is seen to move", 60.0) == {"fr_trace_json"}


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_rank_gets_a_second_signal_only_where_the_record_of_nccl_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for nccl in (False, True):
        asked(tmp_path, STAYS, monkeypatch, nccl=nccl)
        (file,) = tmp_path.glob("*.stack")
        counts.append(file.read_text().count("most recent call first"))
        file.unlink()
    assert counts == [1, 2]


WRITES_ITS_STACK = """
import faulthandler, os, sys, time
faulthandler.register(40, open(os.path.join(sys.argv[1], f"{os.getpid()}.stack"), "a"), all_threads=False)
end, _ = os.pipe()
print("here", flush=True)
if sys.argv[2] == "waits": os.read(end, 1)
if sys.argv[2] == "sleeps": time.sleep(300)
while True: pass
"""
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_ALL = 0x4206, 0x4207, 17, 0x40000000


@contextlib.contextmanager
def seized(pid: int) -> Iterator[None]:
    """This process is the debugger of its child ``pid``. It detaches at the end: else the child would stop at its next
    signal, `Popen` would take that stop for its end, and the child would be neither killed nor reaped."""
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        pytest.skip("ptrace is not allowed here")
    try:
        yield
    finally:
        ptrace(PTRACE_INTERRUPT, pid, None, None)
        os.waitpid(pid, WAIT_ALL)
        assert ptrace(PTRACE_DETACH, pid, None, None) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("does", "how", "interval", "signalled"),
    [
        ("waits", {}, 0.4, False),  # a mere suspicion
        ("waits", {"stuck": True}, 0.4, True),
        ("waits", {"stuck": True}, 0.0, True),
        ("sleeps", {"stuck": True}, 0.4, False),
        ("works", {"stuck": True}, 0.4, False),
        ("works", {"stuck": True}, 0.0, False),
        ("works", {"asked": True}, 0.4, True),
        ("sleeps", {"asked": True}, 0.4, True),
    ],
)
def test_who_gets_the_signal(tmp_path: Path, does: str, how: dict[str, Any], interval: float, signalled: bool) -> None:
    """Where py-spy is missing: it may disturb C code."""
    with program(WRITES_ITS_STACK, str(tmp_path), does, works=does == "works") as process:
        (found,) = of(Tools(str(tmp_path), None)._replace(**how), process.pid, interval=interval)
        written = (tmp_path / f"{process.pid}.stack").stat().st_size
    assert ("stack" in found, written > 0) == (signalled, signalled)
    if not signalled:
        assert "py-spy is not on this host; a signal" in found["missing"][-1]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_process_with_a_debugger_gets_no_signal(tmp_path: Path) -> None:
    """It would stop, for its debugger."""
    with program(WRITES_ITS_STACK, str(tmp_path), "waits") as process, seized(process.pid):
        (found,) = of(Tools(str(tmp_path), None, asked=True), process.pid)
        state = processes.look_at_process(process.pid)
    assert state is not None
    assert (found["state"], state.state) == ("sleeping", "sleeping")
    assert found["missing"][-1] == "no stack: py-spy is not on this host; a debugger is attached to the rank"


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_the_file_of_a_ranks_stacks_does_not_grow_for_ever(tmp_path: Path) -> None:
    with program(WRITES_ITS_STACK, str(tmp_path), "waits") as process:
        file = tmp_path / f"{process.pid}.stack"
        file.write_bytes(b"x" * (1 << 20))
        for _ in range(2):
            found = stacks.by_signal(str(tmp_path), process.pid)
            assert found.main is not None
        assert 0 < file.stat().st_size < 4096


WRITES_SLOWLY = """
import os, signal, sys, time
def write(*_):
    for line in "Stack (most recent call first):", 'File "a.py", line 2 in wait', 'File "a.py", line 9 in <module>':
        file.write("  " + line + "\\n")
        file.flush()
        time.sleep(0.2)
file = open(os.path.join(sys.argv[1], f"{os.getpid()}.stack"), "a")
signal.signal(40, write)
print("here", flush=True)
while True: signal.pause()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_starved_process_writes_its_stack_with_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "SIGNAL_S", 30.0)
    monkeypatch.setattr(stacks, "WHOLE_STACK_S", 3.0)
    with program(WRITES_SLOWLY, str(tmp_path)) as process:
        main = stacks.by_signal(str(tmp_path), process.pid).main
    assert main is not None
    assert [function for _, _, function in main.frames] == ["wait", "<module>"]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_process_that_does_not_ask_for_the_signal_gets_none(tmp_path: Path) -> None:
    """The signal would end such a process."""
    with program(SLEEPS) as process:
        assert stacks.by_signal(str(tmp_path), process.pid).threads is None
        (found,) = of(Tools(str(tmp_path), None, asked=True), process.pid)
        assert process.poll() is None
    assert "does not answer the signal" in found["missing"][-1]


REFUSED = """#!/bin/sh
cat >&2 << 'END'
Permission Denied: Try running again with elevated permissions by going 'sudo env "PATH=$PATH" !!'
END
exit 1
"""
IN_A_CONTAINER = """#!/bin/sh
echo 'It looks like you are running in a docker container. Please start it with the SYS_PTRACE capability.' >&2
exit 1
"""
BROKEN = "#!/bin/sh\necho 'Error: Failed to find  python version' >&2; exit 1"
LATE = "#!/bin/sh\nexec sleep 30"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (REFUSED, "this host lets nobody read another process's memory (Yama or the container)"),
        (IN_A_CONTAINER, "this host lets nobody read another process's memory (Yama or the container)"),
        (BROKEN, "py-spy: Error: Failed to find python version"),
        ("#!/bin/sh", "py-spy: nothing was read"),
        (LATE, "py-spy: it did not end within 0.3 s"),
    ],
)
def test_why_py_spy_has_read_nothing(tmp_path: Path, script: str, words: str) -> None:
    """py-spy's own words on a missing permission are replaced: they advise the user to run the command with sudo."""
    fake = tmp_path / "py-spy"
    fake.write_text(script)
    fake.chmod(0o700)
    assert stacks.by_py_spy(str(fake), os.getpid(), 0.3 if script == LATE else 20.0) == Stacks(None, words)


# --- entering and leaving operations, by stacks alone ----------------------------------------------------------------


def samples(*mains: list[Any]) -> list[Stacks]:
    return [Stacks([PythonThread("MainThread", True, False, frames, {})]) for frames in mains]


INSIDE, RECEIVES, OUTSIDE = [[C10D, 5, "all_reduce"], STEP, MAIN], [[C10D, 5, "recv"], STEP, MAIN], [STEP, MAIN]


@pytest.mark.parametrize(
    ("seen", "recorded", "moved"),
    [
        ((INSIDE, INSIDE), False, False),
        ((INSIDE, OUTSIDE), False, True),
        ((OUTSIDE, [["/job/code/train.py", 89, "step"], MAIN]), False, False),  # a loop of the user's code
        ((INSIDE, [[C10D, 5, "all_reduce"], MAIN]), False, True),
        ((INSIDE, OUTSIDE), True, False),  # the record is the better source
        ((RECEIVES, OUTSIDE), True, True),  # the record has no entry for it
        ((RECEIVES, RECEIVES), True, False),
    ],
)
def test_moving_by_stacks(seen: tuple[list[Any], ...], recorded: bool, moved: bool) -> None:
    assert looking._passes(samples(*seen), recorded) == moved
    assert not looking._passes([Stacks(None, "nothing was read")], recorded)
