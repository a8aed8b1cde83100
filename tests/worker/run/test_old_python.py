"""The worker on Python 3.8: nodes run the Python of their distribution."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker.wire.contract import MIN_PYTHON
from tests.worker.node import WORKER, Node, eventually
from tests.worker.programs import SLEEP, here, watchers_end

FILES = sorted(path for path in Path(WORKER, "ddpctl_worker").rglob("*.py") if "__pycache__" not in path.parts)
IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def parenthesized_withs(source: str) -> list[int]:
    """Lines of a ``with`` with its items in parentheses. Python 3.8 takes ``with (a, b):`` for a tuple, and no
    parser objects: ``feature_version`` lets it pass."""
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in skipped]
    found = []
    for at, token in enumerate(tokens[:-1]):
        if token.type != tokenize.NAME or token.string != "with" or tokens[at + 1].string != "(":
            continue
        depth, several = 0, False
        for inner, one in enumerate(tokens[at + 1 :], at + 1):
            depth += (one.string in tuple("([{")) - (one.string in tuple(")]}"))
            several |= depth == 1 and one.string in (",", "as")
            if depth == 0:
                if several and tokens[inner + 1].string == ":":
                    found.append(token.start[0])
                break
    return found


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("with (a, b):\n    pass\n", True),
        ("with (\n    f(1, 2),\n    g() as x,\n):\n    pass\n", True),
        ("with (a as b):\n    pass\n", True),
        ("with (a):\n    pass\n", False),
        ("with (a or f(1, 2)) as b, c:\n    pass\n", False),
        ("with a, b(1, 2) as c:\n    pass\n", False),
    ],
)
def test_a_with_in_parentheses_is_caught(source: str, caught: bool) -> None:
    assert bool(parenthesized_withs(source)) is caught


@pytest.mark.slow  # a second of the processor
def test_every_file_parses() -> None:
    assert len(FILES) > 100
    wrong = []
    for path in FILES:
        source, name = path.read_text(), str(path.relative_to(WORKER))
        try:
            ast.parse(source, name, feature_version=MIN_PYTHON)
        except SyntaxError as error:
            wrong.append(f"{name}:{error.lineno}: {error.msg}")
            continue
        wrong += [f"{name}:{line}: a with in parentheses" for line in parenthesized_withs(source)]
    assert wrong == []


def candidates() -> Iterator[str]:
    """Every python3.8 of PATH and of pyenv; the first on PATH may be a shim of pyenv that runs no version at all."""
    folders = [Path(one) for one in os.environ.get("PATH", "").split(os.pathsep) if one]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.8*/bin"))
    for path in (folder / "python3.8" for folder in folders):
        if os.access(path, os.X_OK):
            yield str(path)


@pytest.fixture(scope="module")
def old_python() -> str:
    """A real Python 3.8, by its own path. Only where nothing is required of this machine it may be missing."""
    code = "import sys; sys.version_info[:2] == (3, 8) and print(sys.executable)"
    for path in candidates():
        ask = [path, "-c", code]
        done = subprocess.run(ask, env={**os.environ, "PYENV_VERSION": "3.8"}, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    if os.environ.get("DDPCTL_REQUIRE_LAB") == "1" or os.environ.get("CI") == "true":
        pytest.fail("no python3.8 that runs: without it nothing shows that the worker runs on Python 3.8")
    pytest.skip("no python3.8 that runs")


@pytest.mark.slow
def test_every_module_can_be_imported(old_python: str) -> None:
    modules = [".".join(path.relative_to(WORKER).with_suffix("").parts) for path in FILES]
    done = subprocess.run([old_python, "-I", "-c", IMPORT_ALL, WORKER, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_from_start_to_stop(old_python: str, node: Node) -> None:
    node.python = old_python
    run = node.start(SLEEP)
    here(node, run)
    assert node.wait_state(run, "running")["ranks"] == [0, 1]
    tail = node.open("tail", run=run, follow=True)
    eventually(lambda: len(tail.lines) == 2, "the lines come live")
    os.kill(node.pid(run, "guardian"), 9)  # its standby runs there too
    answer = node.call("stop", run=run, grace=5, by="alice")
    assert (answer["survivors"], answer["status"]["state"]) == ([], "killed")
    assert tail.result()["state"] == "killed"
    assert node.call("status", all=True)["runs"][0]["cause"]["message"] == "killed by alice"
    assert "record/exit.json" in node.files(run)[0]
    node.call("gc", days=7)
    watchers_end(node, run)


@pytest.mark.slow
def test_an_installation_is_claimed(old_python: str, node: Node) -> None:
    """As far as it goes without wheels: past the locks."""
    node.python = old_python
    node.base.mkdir(mode=0o700)
    request = {"lock": "x", "lock_hash": hashlib.sha256(b"x").hexdigest(), "wheels": []}
    error = node.open("install", **request).last()["error"]
    assert "needs wheels" in error["message"], error
