"""A rank that the doctor can see behaves like a rank without the doctor: same output byte by byte, same environment,
same children.

``torch`` here is a folder of the test with just the modules that matter; test_in_rank_torch.py uses the real torch.
"""

from __future__ import annotations

import json
import signal
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.doctor import stacks
from tests.worker.rank import Both, Start, program, reported

PY_SPY = str(Path(sys.prefix) / "bin" / "py-spy")
DEBIAN = "/usr/bin/python3"
# All that a program can see of how it was started.
REPORT = """
import os, sys
def report():
    first = os.open(os.devnull, os.O_RDONLY)
    os.close(first)
    import json, signal
    names = sorted(set(sys.modules) - {"sitecustomize"})
    print(json.dumps({
        "environment": sorted(os.environ.items()), "path": sys.path, "argv": sys.argv, "modules": names,
        "flags": list(sys.flags), "first free descriptor": first, "loaders": list(sys.path_importer_cache),
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }, indent=1), flush=True)
"""


pytestmark = pytest.mark.slow  # each case starts Python twice


def crossed(texts: Mapping[str, str], ways: Sequence[str | None], test: str) -> list[Any]:
    """Each text in the first way, and the first text in each way; the rest is for `make test-all`."""
    rest = pytest.mark.full(covered_by=f"tests/worker/doctor/test_in_rank.py::{test}")
    first = next(iter(texts))
    return [
        pytest.param(way, name, marks=[rest] if way != ways[0] and name != first else [])
        for way in ways
        for name in texts
    ]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path / "runs")


# --- what is left in the rank ------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [None, "", "/a", "/a:relative", ":", "a::b:"])
def test_a_rank_sees_what_the_user_has_set(both: Both, path: str | None) -> None:
    found = reported(both.run("-c", REPORT + "report()", env={"PYTHONPATH": path}))
    environment = dict(found["environment"])
    assert environment.get("PYTHONPATH") == path
    assert not [name for name in environment if name.startswith("DDPCTL_LOOK")]
    assert "RUN/doctor" not in json.dumps(found)


def test_the_shim_has_no_variable_of_its_own(both: Both) -> None:
    """A shell exports each variable of its environment with the latest value, so the shim must not set the user's."""
    user = {name: f"the user's {name}" for name in ("p", "b", "python", "doctor", "boot", "pipes", "rank")}
    found = dict(reported(both.run("-c", REPORT + "report()", env=user))["environment"])
    assert {name: found[name] for name in user} == user


NO_IDENTIFIERS = {
    "BASH_FUNC_module%%": "() {  echo sourced;\n}",
    "BASH_FUNC_old()": "() { :; }; echo run",
    "a.b": "x=1 y",
    "x-y": "",
    "1st": "'",
    "ünï": "é\udcff",
}


@pytest.mark.parametrize("doctor", [True, False])
def test_variables_of_any_name_reach_the_rank(tmp_path: Path, doctor: bool) -> None:
    """dash drops variables with a name that is no identifier. Nothing of bash's own start runs."""
    (tmp_path / "profile").write_text("echo sourced\n")
    user = {**NO_IDENTIFIERS, "BASH_ENV": f"{tmp_path}/profile", "ENV": f"{tmp_path}/profile"}
    start = Start(tmp_path / "run", sys.executable, doctor, user)
    ended = start.run("-c", "import os, json; print(json.dumps(dict(os.environ)))")
    assert {name: reported(ended).get(name) for name in user} == user
    assert ended.err == ""


@pytest.mark.parametrize("name", ["a b", "it's", 'say "$HOME"', "ünï", "double//slash", "up/../here"])
def test_a_run_may_lie_in_any_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "up").mkdir()
    start = Start(Path(f"{tmp_path}/{name}"), sys.executable, doctor=True)
    start.paths.__init__(f"{tmp_path}/{name}")  # type: ignore[misc]  # as it is spelt, double slashes and all
    ended = start.run("-c", REPORT + "report()")
    assert dict(reported(ended)["environment"]).keys().isdisjoint({"PYTHONPATH", "DDPCTL_LOOK"})
    assert [one for one in start.files() if one.endswith(".stack")]


def test_a_folder_that_cannot_be_in_pythonpath_is_not_put_there(tmp_path: Path) -> None:
    """A colon separates two folders there: the second would be relative to the working folder."""
    both = Both(tmp_path / "a:b")
    assert "PYTHONPATH" not in dict(reported(both.run("-c", REPORT + "report()"))["environment"])


# --- its children ------------------------------------------------------------------------------------------------
CHILDREN = {
    "subprocess": "subprocess.run([sys.executable, __file__, 'child'], check=True)",
    "a bare environment": "subprocess.run([sys.executable, __file__, 'child'], env={}, check=True)",
    "all descriptors": "subprocess.run([sys.executable, __file__, 'child'], close_fds=False, check=True)",
    "os.fork": "forked = os.fork(); os.waitpid(forked, 0) if forked else (report(), os._exit(0))",
    "fork": "start('fork')",
    "spawn": "start('spawn')",
    "forkserver": "start('forkserver')",
}
EXECS = {
    "exec": "os.execv(sys.executable, [sys.executable, __file__, 'child'])",
    "exec into the environment": "os.execvpe(sys.executable, [sys.executable, __file__, 'child'], os.environ)",
}
PARENT = """
import subprocess, multiprocessing, os
def start(how):
    child = multiprocessing.get_context(how).Process(target=report)
    child.start()
    child.join()
    assert child.exitcode == 0
if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        report()
    else:
        {then}
"""


@pytest.mark.parametrize("path", [None, "", "/a"])
def test_its_children_see_nothing(both: Both, tmp_path: Path, path: str | None) -> None:
    script = program(tmp_path, REPORT + PARENT.format(then="\n        ".join(CHILDREN.values())))
    ended = both.run(script, env={"PYTHONPATH": path})
    assert (ended.code, ended.err) == (0, "")
    texts = ended.out.replace("}\n{", "}\0{").split("\0")
    for how, text in zip(CHILDREN, texts, strict=True):
        found = json.loads(text)
        if how != "a bare environment":
            assert dict(found["environment"]).get("PYTHONPATH") == path, how
        if how not in ("fork", "os.fork"):
            assert found["first free descriptor"] < 10, how
    assert len(both.doctor.files()) == 1  # the rank's own


@pytest.mark.parametrize("how", EXECS)
def test_a_program_that_takes_its_place_sees_nothing(both: Both, tmp_path: Path, how: str) -> None:
    script = program(tmp_path, REPORT + PARENT.format(then=EXECS[how]))
    found = reported(both.run(script, env={"PYTHONPATH": "/a"}))
    assert dict(found["environment"]).get("PYTHONPATH") == "/a"
    assert found["first free descriptor"] < 10
    assert len(both.doctor.files()) == 1  # the rank's own


# --- the user's own sitecustomize --------------------------------------------------------------------------------
OWN = {
    "quiet": "import sys; sys.from_user = __name__, __file__, __spec__.origin",
    "raises": "raise ValueError('boom')",
    "lacks a module": "import no_such_module",
    "syntax": "def (",
    "exits at once": "import os; os._exit(8)",
    "prints": "import sys; print('out'); print('err', file=sys.stderr)",
    "changes the path": "import sys, os; sys.path.insert(0, '/mine'); os.environ['PYTHONPATH'] = '/yours'",
    "restarts": "import os, sys; 'X' in os.environ or os.execve(sys.executable, sys.orig_argv, os.environ | {'X': ''})",
}
SEEN = """
import sys
one = sys.modules.get("sitecustomize")
print(getattr(sys, "from_user", None), getattr(one, "__file__", None), sorted(vars(one)) if one else None)
import sitecustomize, usercustomize
"""
# Without a sitecustomize of the user's own, the module in its place is ours.
UNSEEN = SEEN.replace("import sitecustomize, usercustomize", "").replace("one = ", "one = None #")


@pytest.mark.parametrize(
    ("name", "own"),
    crossed(OWN, ["sitecustomize.py", "sitecustomize/__init__.py"], "test_a_sitecustomize_on_pythonpath"),
)
def test_a_sitecustomize_on_pythonpath(both: Both, tmp_path: Path, name: str, own: str) -> None:
    text = OWN[own]
    program(tmp_path / "own", text, name)
    script = SEEN if text in (OWN["quiet"], OWN["prints"]) else UNSEEN
    both.run("-c", REPORT + "report()" + script, env={"PYTHONPATH": f"/none:{tmp_path}/own"})


def test_a_sitecustomize_that_no_interpreter_survives(both: Both, tmp_path: Path) -> None:
    """The only difference: its traceback has our frames as well."""
    program(tmp_path / "own", "raise SystemExit(7)", "sitecustomize.py")
    starts = (both.doctor, both.plain)
    mine, theirs = (one.run("-c", "", env={"PYTHONPATH": f"{tmp_path}/own"}) for one in starts)
    assert (mine.code, mine.out, mine.err.split("\n")[:1]) == (theirs.code, theirs.out, theirs.err.split("\n")[:1])
    assert mine.err.split("\n")[-3:] == theirs.err.split("\n")[-3:]


def test_a_folder_of_that_name_is_no_module(both: Both, tmp_path: Path) -> None:
    (tmp_path / "own" / "sitecustomize").mkdir(parents=True)
    both.run("-c", UNSEEN, env={"PYTHONPATH": f"{tmp_path}/own"})


@pytest.mark.parametrize("text", OWN.values(), ids=OWN.keys())
def test_a_sitecustomize_in_site_packages(tmp_path: Path, text: str) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    program(packages, text, "sitecustomize.py")
    both = Both(tmp_path / "runs", str(tmp_path / "venv" / "bin" / "python"))
    both.run("-c", UNSEEN)


@pytest.mark.parametrize("text", [None, OWN["quiet"], OWN["raises"]])
def test_debians_sitecustomize(tmp_path: Path, text: str | None) -> None:
    if not any(Path("/usr/lib").glob("python3*/sitecustomize.py")):
        pytest.skip("this system has none")
    both = Both(tmp_path / "runs", DEBIAN)
    if text is not None:
        program(tmp_path / "own", text, "sitecustomize.py")
    ended = both.run("-c", SEEN, env={"PYTHONPATH": f"{tmp_path}/own"})
    assert ("/usr/lib/python3" in ended.out) == (text is None)


@pytest.mark.parametrize(("flag", "own"), crossed(OWN, ["-B", "-s", "-E"], "test_a_usercustomize"))
def test_a_usercustomize(tmp_path: Path, flag: str, own: str) -> None:
    python = wrapper(tmp_path, f'exec {getattr(sys, "_base_executable", sys.executable)} {flag} "$@"')
    home = tmp_path / "home"
    packages = home / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    program(packages, OWN[own], "usercustomize.py")
    both = Both(tmp_path / "runs", python)
    both.run("-c", UNSEEN, env={"PYTHONUSERBASE": str(home)})


# --- interpreters that are started in another way ----------------------------------------------------------------
WRAPPERS = {
    "adds to PYTHONPATH": 'PYTHONPATH=/first${{PYTHONPATH:+:$PYTHONPATH}} exec {python} "$@"',
    "plain": 'exec {python} "$@"',
    "-s": 'exec {python} -s "$@"',
    "-P": 'PYTHONSAFEPATH=1 exec {python} "$@"',
    "helper": '{python} -c "import os; print(os.environ.get(\\"PYTHONPATH\\"))"; exec {python} "$@"',
    "child": '{python} "$@"; exit $?',
}
DEAF = {"-I": 'exec {python} -I "$@"', "-E": 'exec {python} -E "$@"', "-S": 'exec {python} -S "$@"'}


def wrapper(folder: Path, line: str) -> str:
    path = folder / "wrapped-python"
    path.write_text(f"#!/bin/sh\n{line.format(python=sys.executable)}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("path", "how"), crossed(WRAPPERS, ["/a", None], "test_a_wrapper_around_python"))
def test_a_wrapper_around_python(tmp_path: Path, path: str | None, how: str) -> None:
    both = Both(tmp_path / "runs", wrapper(tmp_path, WRAPPERS[how]))
    both.run("-c", REPORT + "report(); sys.exit(5)", env={"PYTHONPATH": path})
    assert bool(both.doctor.files()) == (how != "child")


@pytest.mark.parametrize("how", DEAF)
def test_an_interpreter_that_ignores_pythonpath_runs_as_ever(tmp_path: Path, how: str) -> None:
    """Nothing of ours runs there, so its environment keeps our variables; its children lose them again."""
    both = Both(tmp_path / "runs", wrapper(tmp_path, DEAF[how]))
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print(sys.flags); sys.exit(5)"
    )
    ended = both.run("-c", script, REPORT + "report()")
    assert ended.code == 5
    assert not both.doctor.files()


# --- how it ends -------------------------------------------------------------------------------------------------
ENDS = {
    "well": ("print('done')", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "a word": ("import sys; sys.exit('a word')", 1),
    "an exception": ("def f():\n    raise ValueError('boom')\nf()", 1),
    "a chain": ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('x') from e", 1),
    "os._exit": ("import os; os._exit(4)", 4),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "Ctrl-C": ("import signal; signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "a fault of memory": ("import signal; signal.raise_signal(signal.SIGSEGV)", -signal.SIGSEGV),
    "faulthandler": ("import faulthandler; faulthandler.enable(); faulthandler._sigsegv()", -signal.SIGSEGV),
    "no import": ("import no_such_module", 1),
    "syntax": ("def (", 1),
    "a warning": ("import warnings; warnings.warn('careful')", 0),
    "atexit": ("import atexit, sys; atexit.register(print, 'bye'); sys.exit(9)", 9),
    "a thread": ("import threading; threading.Thread(target=lambda: print('t')).start()", 0),
    "finders": ("import importlib.metadata as m, pkgutil; [*m.distributions(), *pkgutil.iter_modules()]", 0),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_without_the_doctor(both: Both, tmp_path: Path, how: str) -> None:
    text, code = ENDS[how]
    assert both.run(program(tmp_path, text)).code == code


@pytest.mark.parametrize("name", ["PYTHONFAULTHANDLER", "PYTHONDEVMODE", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"])
def test_a_variable_of_pythons(both: Both, name: str) -> None:
    script = REPORT + "import faulthandler; print(faulthandler.is_enabled()); report()"
    both.run("-W", "error", "-c", script, env={name: "1"})


# --- its stack ---------------------------------------------------------------------------------------------------
WAITS = """
import os, sys, threading, time
def other():
    while True:
        time.sleep(0.01)
go_on = os.environ["GO_ON"]
def stands_here():
    print(child, flush=True)
    whole = True
    while whole and not os.access(go_on, os.F_OK):
        begun = time.monotonic()
        time.sleep(1.0)
        whole = time.monotonic() - begun >= 1.0
    return whole
threading.Thread(target=other, daemon=True).start()
parent, child = os.getpid(), os.fork()
if not child:
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)
print(stands_here(), flush=True)
os.kill(child, 9)
print(os.waitpid(child, 0)[1])
if len(sys.argv) < 2:
    os.execv(sys.executable, [sys.executable, "-c", "import time; print('image', flush=True); time.sleep(60)"])
"""


def test_the_signal_gives_the_stack_of_the_main_thread_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "SIGNAL_S", 60.0)
    monkeypatch.setattr(stacks, "SIGNAL_LOOK_S", 0.2)
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    go_on = tmp_path / "go-on"
    with start.living(WAITS, env={"GO_ON": str(go_on)}) as rank:
        found = [stacks.by_signal(start.folder, rank.pid) for _ in range(5)]
        assert [one.main.frames[0][2] for one in found if one.main] == ["stands_here"] * 5, found
        assert [len(one.threads or ()) for one in found] == [1] * 5
        caught = [stacks.catches(pid, stacks.STACK_SIGNAL) for pid in (rank.pid, int(rank.first))]
        assert caught == [True, False]  # not in its child
        go_on.touch()
        assert [rank.line() for _ in range(3)] == ["True", "9", "image"]
        assert not stacks.catches(rank.pid, stacks.STACK_SIGNAL)  # it is another program by now
        assert stacks.by_signal(start.folder, rank.pid).threads is None
        rank.signal(signal.SIGKILL)
        assert rank.end().err == ""
    assert start.files() == {f"{rank.pid}.stack"}


def test_py_spy_reads_it(tmp_path: Path) -> None:
    start = Start(tmp_path / "run", sys.executable, doctor=True)
    go_on = tmp_path / "go-on"
    with start.living(WAITS, env={"GO_ON": str(go_on)}) as rank:
        main = stacks.by_py_spy(PY_SPY, rank.pid, 60.0).main
        assert main is not None
        assert "stands_here" in [frame[2] for frame in main.frames]
        go_on.touch()
        assert rank.line() == "True"


def test_a_rank_without_room_for_files_runs_as_ever(both: Both) -> None:
    """The rank has no stack file if it can open no file, or if the number of the descriptor would be too high."""
    for limit in (4, 6, 64):
        both.run("-c", "print('here')", before=["prlimit", f"--nofile={limit}"])
