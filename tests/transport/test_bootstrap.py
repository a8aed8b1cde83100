"""The program that receives the worker, run for real under whatever interpreters this machine has."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import PythonMissing, ShellBroken
from ddpctl.transport.bootstrap import BOOTSTRAP, Payload, header, last_line, no_banner_error, payload, worker_line

OLD = [path for path in Path("/root/.pyenv/versions").glob("*/bin/python") if path.parts[4][:4] in ("3.6.", "3.7.")]


def start(python: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-I", "-c", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answer(python: str, head: bytes, more: bytes = b"") -> tuple[bytes, bytes, int]:
    """The banner line, the output after it, and the exit status."""
    with start(python) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(head)
        process.stdin.flush()
        banner = process.stdout.readline()
        rest, errors = process.communicate(more)
    assert errors == b""
    return banner, rest, process.returncode


@pytest.mark.slow
def test_have_and_need(tmp_path: Path) -> None:
    package = payload()
    head = header("n" * 32, str(tmp_path / "base"), package)
    request = b'{"verb":"echo","text":"hi"}\n'
    banner, rest, code = answer(sys.executable, head, package.data + request)
    assert (banner, code) == (b"DDPCTL/1 " + b"n" * 32 + b" need\n", 0)
    assert b'"text":"hi"' in rest
    banner, rest, code = answer(sys.executable, head, request)
    assert (banner, code) == (b"DDPCTL/1 " + b"n" * 32 + b" have\n", 0)
    assert b'"text":"hi"' in rest
    assert [path.name for path in (tmp_path / "base/worker").iterdir()] == [package.sha256]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "short"])
def test_a_damaged_package_is_never_used(damage: str, tmp_path: Path) -> None:
    package = payload()
    data = bytearray(package.data)
    data[len(data) // 2] ^= 1
    sent = bytes(data) if damage == "flip" else package.data[:-10]
    banner, rest, _ = answer(sys.executable, header("n" * 32, str(tmp_path / "base"), package), sent)
    assert banner.endswith(b"need\n")
    assert b'"corrupt"' in rest
    assert list((tmp_path / "base/worker").iterdir()) == []


@pytest.mark.slow
def test_a_package_with_a_name_that_leads_out(tmp_path: Path) -> None:
    import hashlib

    from ddpctl.transport.bootstrap import build

    for name in ("../evil.py", "/evil.py", "a/../../evil.py", "a\\b.py"):
        data = build({name: b"boom"})
        package = Payload(data, hashlib.sha256(data).hexdigest(), payload().boot)
        _, rest, _ = answer(sys.executable, header("n" * 32, str(tmp_path / "base"), package), data)
        assert b'"corrupt"' in rest
        assert list((tmp_path / "base/worker").iterdir()) == []
    assert not list(tmp_path.glob("**/evil.py"))


@pytest.mark.slow
@pytest.mark.skipif(not OLD, reason="no interpreter before 3.8 on this machine")
def test_an_old_interpreter_says_so(tmp_path: Path) -> None:
    for python in OLD:
        banner, rest, code = answer(str(python), header("n" * 32, str(tmp_path / "base"), payload()))
        assert banner.startswith(b"DDPCTL/1 " + b"n" * 32 + b" old 3.")
        assert (rest, code) == (b"", 0)
    assert list(tmp_path.iterdir()) == []


def test_the_boot_program_is_old_syntax() -> None:
    """Python 3.4 must be able to read it: no f-strings, no variable annotations, no walrus."""
    import ast

    ast.parse(payload().boot, feature_version=(3, 4))
    assert not any(isinstance(node, ast.JoinedStr | ast.AnnAssign) for node in ast.walk(ast.parse(payload().boot)))


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_no_shell_ever_reads_the_interpreter(python: str) -> None:
    line = worker_line(python)
    words = shlex.split(line)
    expected = "$HOME/" + python[2:] if python.startswith("~/") else python
    assert words == [expected, "-I", "-c", BOOTSTRAP]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shell", [name for name in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if shutil.which(name)]
)
def test_home_is_expanded_and_nothing_else(shell: str, tmp_path: Path) -> None:
    for name in ("plain", "a b", "it's", "$(touch evil)", "`touch evil`", "*", ";touch evil", '"q"', "back\\slash"):
        fake = tmp_path / name
        fake.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\n')
        fake.chmod(0o755)
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [shell, "-c", worker_line(f"~/{name}")], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
        )
        assert done.stdout == f"{tmp_path}/{name}|-I|-c|{BOOTSTRAP}|"
    assert not (tmp_path / "evil").exists()


def test_why_there_is_no_banner() -> None:
    missing = no_banner_error("python9", 127, b"", b"bash: line 1: python9: command not found\n")
    assert isinstance(missing, PythonMissing)
    assert "there is no python9: bash: line 1: python9: command not found" in str(missing)
    assert isinstance(no_banner_error("/etc", 126, b"", b"Is a directory"), PythonMissing)
    old = no_banner_error("python2", 2, b"", b"Unknown option: -I\nusage: python2 [option] ...\n")
    assert isinstance(old, PythonMissing)
    assert "Python 2" in str(old)
    broken = no_banner_error("python3", 0, b"This account\nis closed.\n\n", b"")
    assert isinstance(broken, ShellBroken)
    assert "exit status 0): is closed." in str(broken)
    assert "no exit status" in str(no_banner_error("python3", -1, b"", b""))


@given(st.binary(max_size=300))
def test_a_quoted_line_is_one_printable_line(output: bytes) -> None:
    line = last_line(output)
    assert line.isprintable()
    assert len(line) <= 200
