"""A rank while it imports torch: the debug server, its threads, the import itself, torch's variables.

``torch`` here is a folder of the test with just the modules that matter; test_in_rank_torch.py uses the real torch.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpctl_worker.doctor import rank
from tests.worker.rank import Both, Start, program

FAKE_TORCH = {
    "torch/__init__.py": "",
    "torch/torch_version.py": "__version__ = '2.13.0+cpu'",
    "torch/_C/__init__.py": "",
    "torch/_C/_distributed_c10d.py": """
import os
class _WorkerServer:
    def __init__(self, path):
        os.write(2, b"the server's own line")
        with open(os.path.join(os.environ["SERVERS"], str(os.getpid())), "x"):
            pass
""",
    "torch/distributed/__init__.py": "",
    "torch/distributed/distributed_c10d.py": "print('imported')",
}


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path / "runs")


def fake_torch(folder: Path) -> str:
    for name, text in FAKE_TORCH.items():
        program(folder, text, name)
    return str(folder)


IMPORT = "import torch.distributed.distributed_c10d as c, os; "


@pytest.fixture
def torch_env(tmp_path: Path) -> dict[str, str | None]:
    servers = tmp_path / "servers"
    servers.mkdir()
    return {"PYTHONPATH": fake_torch(tmp_path / "lib"), "SERVERS": str(servers)}


def servers_of(env: dict[str, str | None]) -> list[str]:
    return os.listdir(str(env["SERVERS"]))


@pytest.mark.slow
def test_the_import_of_torch_starts_the_server_and_leaves_no_trace(
    both: Both, torch_env: dict[str, str | None]
) -> None:
    script = IMPORT + "import sys; print(vars(c.__spec__.loader), [type(one).__name__ for one in sys.meta_path])"
    assert both.run("-c", script, env=torch_env).out.startswith("imported\n{'name': ")
    assert len(servers_of(torch_env)) == 1


# Threads that are free: the host runs 1000, the limits are below.
HOST = {
    "proc/loadavg": "0.1 0.2 0.3 2/1000 4242\n",
    "proc/self/limits": "Max open files  1024 1024 files\nMax processes  unlimited unlimited processes\n",
    "proc/sys/kernel/threads-max": "500000\n",
    "proc/sys/kernel/pid_max": "400000\n",
    "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
    "sys/fs/cgroup/cgroup.procs": "1\n",
}


def group(path: str, most: str, used: int) -> dict[str, str]:
    names = {"pids.max": most, "pids.current": used, "cgroup.procs": 7, "cgroup.events": "populated 1"}
    return {f"sys/fs/cgroup{path}/{name}": f"{value}\n" for name, value in names.items()}


CONTAINER = {"proc/self/cgroup": "0::/\n"}
VERSION_1 = {"proc/self/cgroup": "9:cpu,cpuacct:/a\n8:pids:/a\n0::/a\n", "sys/fs/cgroup/cgroup.procs": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, 399000),
        ({"proc/sys/kernel/threads-max": "3000"}, 2000),
        ({"proc/self/limits": "Max processes             4096    unlimited    processes\n"}, 3096),
        ({"proc/self/limits": "Max processes 100 100 processes\n"}, -900),
        (group("/user.slice/session-1.scope", "max", 5), 399000),
        (group("/user.slice/session-1.scope", "300", 5), 295),
        ({**group("/user.slice/session-1.scope", "max", 5), **group("/user.slice", "200", 150)}, 50),
        ({**CONTAINER, **group("", "2048", 40)}, 2008),
        ({**CONTAINER, **group("", "max", 40)}, 4056),
        ({**CONTAINER, **group("", "100000", 40)}, 4056),
        ({**CONTAINER, **group("", "", 0), "sys/fs/cgroup/pids.max": ""}, 3096),  # without this controller
        ({"proc/self/cgroup": "0::/../../x\n"}, 399000),
        ({"sys/fs/cgroup/cgroup.procs": ""}, 3096),  # no groups are mounted
        ({**VERSION_1, "sys/fs/cgroup/pids/cgroup.procs": "1"}, 399000),
        ({**VERSION_1, **group("/pids/a", "60", 50), "sys/fs/cgroup/pids/cgroup.procs": "1"}, 10),
        ({**VERSION_1, **group("/pids", "max", 50)}, 4046),  # a container sees its own group at the top
    ],
)
def test_the_threads_that_the_limits_leave(tmp_path: Path, changes: dict[str, str], free: int) -> None:
    for name, text in {**HOST, **changes}.items():
        if text:
            program(tmp_path, text, name)
    # Under the name sitecustomize it would hand over to the interpreter's own, which Debian has.
    path = str(Path(rank.__file__).with_name("sitecustomize.py"))
    script = f"import runpy; print(runpy.run_path({path!r}, run_name='limits')['_free_threads']({str(tmp_path)!r}))"
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert int(printed.stdout) == free


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "1000000"])
def test_many_ranks_on_a_host_have_no_server(both: Both, torch_env: dict[str, str | None], ranks: str) -> None:
    """Each server would start a thread for each processor."""
    both.run("-c", IMPORT, env={**torch_env, "LOCAL_WORLD_SIZE": ranks})
    assert len(servers_of(torch_env)) == (ranks == "1")


@pytest.mark.slow
def test_a_rank_that_cannot_have_these_threads_has_no_server(both: Both, torch_env: dict[str, str | None]) -> None:
    """There is no limit on threads here, but there is not enough room for the stacks of the threads."""
    both.run("-c", IMPORT, env=torch_env, before=["prlimit", f"--stack={1 << 44}"])
    assert servers_of(torch_env) == []


@pytest.mark.slow
def test_a_rank_without_stderr_has_no_server(both: Both, torch_env: dict[str, str | None]) -> None:
    """It announces itself there: that would go into whatever the rank has opened under this number."""
    both.run("-c", "import os; os.close(2); " + IMPORT + "print(os.open(os.devnull, os.O_RDONLY))", env=torch_env)
    assert servers_of(torch_env) == []


def wait_longer_for_its_turn(start: Start) -> None:
    path = Path(start.paths.doctor_boot, "sitecustomize.py")
    text, count = re.subn("^_TURN_S = 2.0", "_TURN_S = 60.0", path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("free_again", [True, False])
def test_the_ranks_of_a_run_start_their_servers_in_turn(
    tmp_path: Path, torch_env: dict[str, str | None], free_again: bool
) -> None:
    """A rank waits for the other ranks, but not forever: a rank may be suspended at that moment."""
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    if free_again:
        wait_longer_for_its_turn(start)
    with open(os.path.join(start.folder, "turn"), "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with start.start("-c", IMPORT, env=torch_env) as process:
            time.sleep(0.5)
            assert (process.poll(), servers_of(torch_env)) == (None, [])
            if free_again:
                other.close()
            assert process.communicate(timeout=60) == ("imported\n", "")
    assert len(servers_of(torch_env)) == free_again


@pytest.mark.slow
def test_no_other_account_can_take_the_turn_of_a_rank(tmp_path: Path, torch_env: dict[str, str | None]) -> None:
    """Abstract names belong to the first account that binds them, so the turn is a file in the run's own folder."""
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    found = os.stat(start.folder)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0ddpctl-{found.st_dev}-{found.st_ino}")
        with start.start("-c", IMPORT, env=torch_env) as process:
            assert process.communicate(timeout=60) == ("imported\n", "")
    assert len(servers_of(torch_env)) == 1
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.join(start.folder, "turn")).st_mode) == 0o600


@pytest.mark.slow
def test_a_child_that_imports_torch_itself_has_no_server(both: Both, torch_env: dict[str, str | None]) -> None:
    script = "import os; os.fork() and os.wait() or __import__('torch.distributed.distributed_c10d')"
    script += "; print(os.environ.get('TORCH_FR_BUFFER_SIZE'))"
    both.run("-c", script, env=torch_env)
    assert servers_of(torch_env) == []


@pytest.mark.slow
def test_a_finder_of_the_old_kind_does_no_harm(both: Both, torch_env: dict[str, str | None]) -> None:
    """Up to Python 3.11 a finder could have find_module alone."""
    script = (
        "import sys; sys.meta_path.insert(1, type('Old', (), {'find_module': lambda self, name, path=None: None})()); "
    )
    both.run("-W", "ignore", "-c", script + IMPORT, env=torch_env)
    assert len(servers_of(torch_env)) == 1


@pytest.mark.slow
def test_another_import_that_is_under_way_misses_no_finder(
    both: Both, torch_env: dict[str, str | None], tmp_path: Path
) -> None:
    """Here it comes to the finder of files next; the list of finders must not shrink under it."""
    program(tmp_path / "lib", "print('late')", "late.py")
    finder = """
import sys
class First:
    def find_spec(self, name, path=None, target=None):
        if name == "late":
            import torch.distributed.distributed_c10d
kinds = [getattr(one, "__name__", "") for one in sys.meta_path]
sys.meta_path.insert(kinds.index("PathFinder"), First())
import late
"""
    assert both.run("-c", finder, env=torch_env).out == "imported\nlate\n"
    assert len(servers_of(torch_env)) == 1


LOADERS = {
    "of the old kind": "def load_module(self, name): sys.modules[name] = os; return os",
    "closed": """
    create_module = lambda self, spec: None
    exec_module = lambda self, module: None
    __setattr__ = lambda self, name, value: 1 / 0
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", LOADERS)
def test_a_loader_that_cannot_be_watched_does_its_work(both: Both, torch_env: dict[str, str | None], how: str) -> None:
    finder = f"""
import importlib.machinery, os, sys
class Loader:
    {LOADERS[how]}
class First:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed.distributed_c10d":
            return importlib.machinery.ModuleSpec(name, Loader())
sys.meta_path.insert(1, First())
"""
    assert both.run("-W", "ignore", "-c", finder + IMPORT, env=torch_env).code == 0


@pytest.mark.slow
def test_an_import_of_torch_that_fails(both: Both, torch_env: dict[str, str | None]) -> None:
    program(Path(str(torch_env["PYTHONPATH"])), "raise RuntimeError('broken')", "torch/distributed/distributed_c10d.py")
    assert both.run("-c", IMPORT, env=torch_env).code == 1
    assert servers_of(torch_env) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", ["torch/_C/_distributed_c10d.py", "torch/torch_version.py"])
@pytest.mark.parametrize("text", ["raise ImportError('other')", "raise RuntimeError('other')", "__version__ = 'x.y'"])
def test_another_torch_than_expected(both: Both, torch_env: dict[str, str | None], part: str, text: str) -> None:
    program(Path(str(torch_env["PYTHONPATH"])), text, part)
    assert both.run("-c", IMPORT, env=torch_env).out == "imported\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "user", "expected"),
    [
        ("2.13.0+cpu", {}, "300 None"),
        ("2.10.0", {}, "300 None"),
        ("2.9.1", {}, "None None"),
        ("2.8.0", {}, "None None"),
        ("2.7.1", {}, "None 300"),
        ("2.5.0", {}, "None 300"),
        ("2.4.1", {}, "None None"),
        ("1.13.0a0", {}, "None None"),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "7"}, "7 None"),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "8"}, "None 8"),
        ("2.7.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "None 0"),
    ],
)
def test_the_size_of_the_record(
    tmp_path: Path, torch_env: dict[str, str | None], version: str, user: dict[str, str], expected: str
) -> None:
    program(Path(str(torch_env["PYTHONPATH"])), f"__version__ = {version!r}", "torch/torch_version.py")
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    script = IMPORT + "g = os.environ.get; print(g('TORCH_FR_BUFFER_SIZE'), g('TORCH_NCCL_TRACE_BUFFER_SIZE'))"
    assert start.run("-c", script, env={**torch_env, **user}).out.split("\n")[1] == expected


DUMP, STEM, OLD_STEM = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "user", "expected"),
    [
        ("2.13.0+cpu", {}, {DUMP: "1", STEM: "OURS"}),
        ("2.10.0", {}, {DUMP: "1", STEM: "OURS"}),
        ("2.9.1", {}, {DUMP: "1", STEM: "OURS", OLD_STEM: "OURS"}),
        ("2.8.0", {}, {DUMP: "1", STEM: "OURS", OLD_STEM: "OURS"}),
        ("2.7.1", {}, {DUMP: "1", OLD_STEM: "OURS"}),
        ("2.6.0", {}, {OLD_STEM: "OURS"}),
        ("2.2.0", {}, {OLD_STEM: "OURS"}),
        ("2.1.2", {}, {}),
        ("1.13.0a0", {}, {}),
        ("2.13.0", {DUMP: "0"}, {DUMP: "0", STEM: "OURS"}),
        ("2.6.0", {DUMP: "1"}, {DUMP: "1", OLD_STEM: "OURS"}),
        ("2.13.0", {STEM: "mine"}, {DUMP: "1", STEM: "mine"}),
        ("2.13.0", {OLD_STEM: "mine"}, {DUMP: "1", OLD_STEM: "mine"}),
        ("2.7.1", {STEM: "mine"}, {DUMP: "1", STEM: "mine"}),
    ],
)
def test_where_torch_writes_its_dump(
    tmp_path: Path, torch_env: dict[str, str | None], version: str, user: dict[str, str], expected: dict[str, str]
) -> None:
    program(Path(str(torch_env["PYTHONPATH"])), f"__version__ = {version!r}", "torch/torch_version.py")
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    script = IMPORT + f"print({{name: os.environ[name] for name in {(DUMP, STEM, OLD_STEM)} if name in os.environ}})"
    found = start.run("-c", script, env={**torch_env, **user}).out.split("\n")[1]
    assert found.replace(f"{start.paths.dumps}/rank_", "OURS") == str(expected)


@pytest.mark.slow
def test_a_dump_can_be_written_in_a_deep_folder_and_an_earlier_one_stays(
    tmp_path: Path, torch_env: dict[str, str | None]
) -> None:
    start = Start(tmp_path / ("deep" * 50) / ("er" * 100), sys.executable, doctor=True)
    script = IMPORT + f"open(os.environ['{STEM}'] + '0', 'x').write(os.environ['ATTEMPT'])"
    for attempt in ("first", "second"):
        assert start.run("-c", script, env={**torch_env, "ATTEMPT": attempt}).code == 0
    folder = Path(start.paths.dumps)
    assert {one.name: one.read_text() for one in folder.iterdir()} == {"earlier_0": "first", "rank_0": "second"}
    assert folder.stat().st_mode & 0o777 == 0o700
