"""Ranks with the real torch: its debug server answers, only in the rank, and the rank does not notice it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpctl_worker.doctor import dumps, stacks
from ddpctl_worker.rules import flight
from ddpctl_worker.rules.flight import Entry
from tests.lab import interpreters
from tests.worker.node import eventually
from tests.worker.rank import Ended, Start

LONG = pytest.mark.skipif(not os.environ.get("DDPCTL_RANKS"), reason="imports torch a hundred times: `make ranks`")
pytestmark = [pytest.mark.torch, pytest.mark.slow, LONG]

PY_SPY = str(Path(sys.prefix) / "bin" / "py-spy")
NOBODY = 65534
ROUNDS = 1  # each imports torch, with the processor time that takes
AT_ONCE_S = 30.0  # less than the time that is given for an answer
EXIT_S = 60.0  # from a script's last line to its end: a fraction of a second, if it does not hang
GROUP = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
x = torch.ones(4)
"""


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    if not interpreters.has_torch(Path(sys.executable)):
        pytest.skip("no torch here")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a rank may need seconds for its stack."""
    monkeypatch.setattr(stacks, "SIGNAL_S", 60.0)
    monkeypatch.setattr(stacks, "SIGNAL_LOOK_S", 0.2)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path / "doctor", sys.executable, doctor=True)


@pytest.fixture
def plain(tmp_path: Path) -> Start:
    return Start(tmp_path / "plain", sys.executable, doctor=False)


def sockets(start: Start) -> set[str]:
    return {name for name in start.files() if name.endswith(".sock")}


def finished(start: Start, pid: int) -> list[Entry]:
    """Return a rank's record once all its collectives are done: gloo's thread notes that after they have returned."""
    until = time.monotonic() + 60.0
    while True:
        found = flight.entries(start.ask(pid, "fr_trace_json") or b"") or []
        if all(one.done for one in found) or time.monotonic() >= until:
            return found
        time.sleep(0.05)


def alike(ended: Ended) -> tuple[int, str, str]:
    """Return how a process ended, without the parts that differ from run to run: times, pids, addresses, ports."""
    out, err = (re.sub(r"0x[0-9a-f]+|\d+", "0", text) for text in (ended.out, ended.err))
    return ended.code, out, err


# --- the server --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("", 300),
        ("import os; os.environ['TORCH_FR_BUFFER_SIZE'] = '20'\n", 20),
        ("import os, torch; os.environ['TORCH_FR_BUFFER_SIZE'] = '20'\n", 20),
    ],
)
def test_the_server_answers_with_the_last_collectives(start: Start, before: str, size: int) -> None:
    script = before + GROUP + "for _ in range(350): dist.all_reduce(x)\nprint('ready', flush=True)\ntime.sleep(300)"
    with start.living(script) as rank:
        assert rank.first == "ready"
        assert start.ask(rank.pid, "ping")
        found = finished(start, rank.pid)
        assert (len(found), {one.done for one in found}) == (size, {True})
        main = stacks.by_signal(start.folder, rank.pid).main
        assert main is not None
        assert main.frames[0][2] == "<module>"
        assert sockets(start) == {f"{rank.pid}.sock"}


def test_the_users_variable_stays(start: Start) -> None:
    script = GROUP + "for _ in range(50): dist.all_reduce(x)\nprint('ready', flush=True)\ntime.sleep(300)"
    with start.living(script, env={"TORCH_FR_BUFFER_SIZE": "30"}) as rank:
        assert rank.first == "ready"
        assert len(flight.entries(start.ask(rank.pid, "fr_trace_json") or b"") or []) == 30


def test_torchs_own_dump_is_read_like_its_record(start: Start) -> None:
    """With gloo torch writes no dump by itself; here the script writes it where NCCL's writer would."""
    write = "open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + '0', 'wb').write(_dump_fr_trace())"
    script = GROUP + "from torch._C._distributed_c10d import _dump_fr_trace\nfor _ in range(350): dist.all_reduce(x)\n"
    with start.living(script + write + "\nprint('ready', flush=True)\ntime.sleep(300)") as rank:
        assert rank.first == "ready"
        found = [one._replace(done=True) for one in dumps.read_dump(start.paths.dumps, 0) or []]
        assert found == finished(start, rank.pid)
        assert len(found) == 300


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_cannot_ask() -> None:
    """The folder itself is closed, even if the folders above it are open."""
    above = Path(tempfile.mkdtemp())
    try:
        start = Start(above / "run", sys.executable, doctor=True)
        above.chmod(0o755)
        (above / "run").chmod(0o755)
        ask = "import socket; socket.socket(socket.AF_UNIX).connect({!r})"
        with start.living("import torch.distributed; print('ready', flush=True); input()") as rank:
            path = f"{start.folder}/{rank.pid}.sock"
            assert os.stat(start.folder).st_mode & 0o777 == 0o700
            user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
            for who, code in (([], 0), (user, 1)):
                argv = [*who, "/usr/bin/python3", "-I", "-c", ask.format(path)]
                said = subprocess.run(argv, capture_output=True, text=True, check=False)
                assert said.returncode == code, said.stderr
            assert "PermissionError" in said.stderr
    finally:
        shutil.rmtree(above)


# --- what the rank starts has no server --------------------------------------------------------------------------
LOADER = """
import os, torch
from torch.utils.data import DataLoader, Dataset
class Pids(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        import torch.distributed
        return os.getpid()
def main():
    import torch.distributed
    loader = DataLoader(Pids(), num_workers=2, multiprocessing_context={how!r})
    print(len({{int(pid) for batch in loader for pid in batch}}), flush=True)
if __name__ == "__main__":
    main()
"""
SPAWN = """
import os, torch.multiprocessing as mp
def work(i):
    import torch.distributed
    print("worker", flush=True)
if __name__ == "__main__":
    import torch.distributed
    mp.spawn(work, nprocs=2)
"""
CHILD = "import torch.distributed, os; print('child', os.environ.get('DDPCTL_LOOK'), flush=True)"
CHILDREN = {
    "fork loader": LOADER.format(how="fork"),
    "spawn loader": LOADER.format(how="spawn"),
    "mp.spawn": SPAWN,
    "os.fork": "import torch.distributed, os; os.fork() and os.wait() or print('child', flush=True)",
    "fork before torch": "import os; os.fork() and os.wait() or print('child'); import torch.distributed",
    "subprocess": f"import torch.distributed, subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])",
}


@pytest.mark.parametrize("how", CHILDREN)
def test_its_children_have_none(start: Start, plain: Start, tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHILDREN[how])
    mine, theirs = (one.run(str(script)) for one in (start, plain))
    assert alike(mine) == alike(theirs)
    assert mine.code == 0
    assert len(sockets(start)) == 1


def test_a_forked_child_does_not_answer(start: Start) -> None:
    script = "import os, time, torch.distributed\nchild = os.fork()\nchild and print(child, flush=True)\ntime.sleep(60)"
    with start.living(script) as rank:
        child = int(rank.first)
        begun = time.monotonic()
        assert start.ask(child) is None
        assert time.monotonic() - begun < AT_ONCE_S
        assert start.ask(rank.pid)
        os.kill(child, signal.SIGKILL)


def test_another_program_in_the_rank_refuses_at_once(start: Start) -> None:
    then = "import time; print('image', flush=True); time.sleep(60)"
    script = f"import os, sys, torch.distributed; os.execv(sys.executable, [sys.executable, '-c', {then!r}])"
    with start.living(script) as rank:
        assert rank.first == "image"
        begun = time.monotonic()
        assert start.ask(rank.pid) is None
        assert time.monotonic() - begun < AT_ONCE_S
        assert sockets(start) == {f"{rank.pid}.sock"}
        opened = [os.readlink(f"/proc/{rank.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{rank.pid}/fd")]
        assert not [name for name in opened if name.startswith(("socket:", start.folder))]


# --- the rank's own life -----------------------------------------------------------------------------------------
LIVES = {
    "compile": "import torch\nf = torch.compile(lambda x: 2 * x + 1, backend='eager')\nprint(f(torch.ones(3)))",
    "waits for a signal": """
import os, signal, torch.distributed
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigtimedwait([signal.SIGUSR1], 5).si_signo)
""",
    "a blocked signal": """
import os, signal, time, torch.distributed
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
print(signal.sigpending())
""",
    "its own mask": "import signal, torch.distributed; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "a handler": """
import os, signal, time, torch.distributed
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
raise SystemExit(6)
""",
    "stderr": "import os, torch.distributed; os.write(2, b'seen'); print(os.get_inheritable(2))",
    "no stderr": "import os\nos.close(2)\nimport torch.distributed\nprint(os.open(os.devnull, os.O_RDONLY))",
}


@pytest.mark.parametrize("how", LIVES)
def test_it_lives_as_without_the_doctor(start: Start, plain: Start, tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(LIVES[how])
    mine, theirs = (one.run(str(script)) for one in (start, plain))
    assert alike(mine) == alike(theirs)
    assert len(sockets(start)) == (how != "no stderr")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("most", [1, 3, 6, 12])
def test_a_rank_that_may_start_few_threads(start: Start, tmp_path: Path, most: int) -> None:
    """torch's server aborts a process that cannot have another thread, so there it is not started."""
    user = 300_000 + most  # a user without other processes: the limit counts all threads of a user
    for path in (start.paths.node, *map(str, Path(start.paths.node).rglob("*"))):
        os.chown(path, user, user)
    argv = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    argv += ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override", "prlimit", f"--nproc={most}"]
    ended = start.run("-c", "import torch.distributed; print('fine')", before=argv)
    assert (ended.code, ended.out, ended.err) == (0, "fine\n", "")
    assert sockets(start) == set()


# --- its end -----------------------------------------------------------------------------------------------------
# The pause: gloo's thread may still let go of the last tensor, and aborts a process that is past the end of Python by
# then ("terminate called without an active exception"). That is torch's own, with the doctor and without.
RECORD = "for _ in range(400): dist.all_reduce(x)\ntime.sleep(1.0)\n"
LAST = """
import os, time
while not os.path.exists(os.environ["ASKED"]):
    time.sleep(0.05)
print("last line", flush=True)
"""
ENDS = {
    "import": ("import torch.distributed\n" + LAST, 0),
    "init": (GROUP + LAST, 0),
    "collectives": (GROUP + RECORD + LAST, 0),
    "destroyed": (GROUP + RECORD + "dist.destroy_process_group()\n" + LAST, 0),
    "sys.exit": (GROUP + RECORD + LAST + "sys.exit(3)", 3),
    "exception": (GROUP + RECORD + LAST + "raise ValueError('boom')", 1),
    "os._exit": (GROUP + RECORD + LAST + "os._exit(4)", 4),
    "SIGTERM": (GROUP + RECORD + LAST + "import signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15),
}


@contextmanager
def asking(start: Start, pid: int) -> Iterator[list[bool]]:
    """Let two clients ask for the record again and again; yield a list of whether each question had an answer."""
    answers: list[bool] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(start.ask(pid, "fr_trace_json", 1.0) is not None)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        over.set()
        for client in clients:
            client.join()


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_without_the_doctor_while_it_is_asked(start: Start, plain: Start, tmp_path: Path, how: str) -> None:
    text, code = ENDS[how]
    expected = plain.run("-c", text, env={"ASKED": "/"})
    assert expected.code == code
    for number in range(ROUNDS):
        asked = tmp_path / f"asked{number}"
        with start.start("-c", text, env={"TORCH_FR_BUFFER_SIZE": "2000", "ASKED": str(asked)}) as process:
            try:
                with asking(start, process.pid) as answers:
                    eventually(lambda: any(answers), "an answer", 60.0)
                    asked.touch()
                    assert process.stdout is not None
                    head = ""
                    while not head.endswith("last line\n"):
                        line = process.stdout.readline()
                        assert line, process.communicate(timeout=EXIT_S)
                        head += line
                    out, err = process.communicate(timeout=EXIT_S)
            finally:
                process.kill()
        assert alike(Ended(process.returncode, head + out, err, 0.0)) == alike(expected)


# --- an old torch ------------------------------------------------------------------------------------------------
def test_torch_113_runs_as_ever(tmp_path: Path, python113: str) -> None:
    script = GROUP.replace("127.0.0.1:0", "127.0.0.1:29641") + "dist.all_reduce(x)\n"
    end = "print(sorted(name for name in os.environ if 'TRACE_BUFFER' in name or 'FR_' in name)); sys.exit(3)"
    start, plain = (Start(tmp_path / str(doctor), python113, doctor=doctor) for doctor in (True, False))
    mine, theirs = (one.run("-c", script + end) for one in (start, plain))
    assert alike(mine) == alike(theirs)
    assert mine.code == 3
    assert sockets(start) == set()
    with start.living(script + "print('ready', flush=True)\ntime.sleep(300)") as rank:
        assert rank.first == "ready"
        assert start.ask(rank.pid) is None
        mains = [stacks.by_py_spy(PY_SPY, rank.pid, 60.0).main, stacks.by_signal(start.folder, rank.pid).main]
        assert [main and main.frames[0][2] for main in mains] == ["<module>"] * 2
