"""A plain command, here on this machine: its arguments, its output, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpctl.errors import RemoteError
from ddpctl.spec.host import Host
from ddpctl.transport import node
from ddpctl.transport.exec_guard import guarded
from ddpctl.transport.local import LocalTransport

HOSTILE = [
    "a b",
    "it's",
    '"q"',
    "$HOME `id` $(id)",
    "\\n\\\\",
    "new\nline",
    "!x",
    "é",
    "\udcff",
    "",
    "*",
    "-n",
    "\t",
    "~",
    "%s",
]
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep {0}; sleep {0}' & timeout {0} sleep {0}; sleep {0}"


@pytest.fixture
def here() -> Iterator[LocalTransport]:
    transport = LocalTransport(Host(name="here", address="here", connection="local"))
    yield transport
    transport.close()


def living(seconds: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = path.read_bytes().split(b"\0")
            if b"sleep" in words and str(seconds).encode() in words:
                found.append(str(words))
    return found


def gone(seconds: int) -> bool:
    until = time.monotonic() + 60
    while living(seconds) and time.monotonic() < until:
        time.sleep(0.1)
    return not living(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("shell", [("sh", "-c"), ("bash", "-c")])
def test_arguments_byte_for_byte(shell: tuple[str, ...]) -> None:
    program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    line = guarded([sys.executable, "-c", program, *HOSTILE])
    assert "\n" not in line
    pipe = subprocess.PIPE
    # With pipes of its own, as sshd gives it: it ends when no process holds its output. Other processes may hold ours.
    with subprocess.Popen([*shell, line], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as done:
        assert done.stdout is not None
        assert done.stdout.read() == b"\0".join(word.encode("utf-8", "surrogateescape") for word in HOSTILE)


def test_a_nul_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        guarded(["echo", "a\0b"])


@pytest.mark.slow
def test_streams_and_exit_codes(here: LocalTransport) -> None:
    ran = here.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")
    assert here.run(["no-such-program"]).exit_code == 127
    assert here.run(["sh", "-c", "kill -9 $$"]).exit_code == 137


@pytest.mark.slow
def test_output_is_bounded_and_not_cut_within_a_character(here: LocalTransport) -> None:
    ran = here.run([sys.executable, "-c", "print('é' * 1_000_000)"])
    assert ran.stdout.startswith("[951425 earlier bytes were left out]\n")
    assert ran.stdout.endswith("é\n")
    small = here.run([sys.executable, "-c", "print('é' * 100_000)"])
    assert small.stdout == "é" * 100_000 + "\n"


@pytest.mark.slow
def test_the_deadline_ends_all_that_was_started(here: LocalTransport) -> None:
    for seconds in (1.5, 20.0, 60.0):  # a busy machine may start it late
        ran = here.run(["sh", "-c", f"echo begun; {STUBBORN.format(47110)}"], timeout=seconds)
        assert ran.exit_code is None
        assert f"did not end within {seconds:g} s" in (ran.error or "")
        if ran.stdout:
            break
    assert ran.stdout == "begun\n"
    assert gone(47110)


@pytest.mark.slow
def test_closing_ends_all_that_was_started(here: LocalTransport) -> None:
    def run() -> None:
        here.run(["sh", "-c", STUBBORN.format(47111)], timeout=60)

    thread = threading.Thread(target=run)
    thread.start()
    while not living(47111):
        time.sleep(0.05)
    here.close()
    thread.join(60)
    assert not thread.is_alive()
    assert gone(47111)


@pytest.mark.slow
def test_closing_waits_for_a_start(here: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs already, and of which its transport does not know yet, is ended too."""
    start = subprocess.Popen

    def slow_start(*args: Any, **options: Any) -> Any:
        process = start(*args, **options)
        time.sleep(1)
        return process

    monkeypatch.setattr(subprocess, "Popen", slow_start)
    thread = threading.Thread(target=lambda: here.run(["sleep", "47112"], timeout=60))
    thread.start()
    while not living(47112):
        time.sleep(0.05)
    here.close()
    thread.join(60)
    assert not thread.is_alive()
    assert gone(47112)


def test_env_is_refused() -> None:
    with pytest.raises(TypeError, match="env="):
        node.ThisMachine().run("true", env={"A": "b"}, replace_env=True)


def test_fabric_runs_as_it_is_told_to() -> None:
    assert node.CONFIG.run.hide is True
    assert (node.CONFIG.run.warn, node.CONFIG.run.pty, node.CONFIG.run.in_stream) == (True, False, False)


def test_the_configuration_that_all_hosts_share_is_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change would empty it for a moment, while other threads read it."""

    def merge(config: object) -> None:
        raise AssertionError("changed")

    monkeypatch.setattr(type(node.CONFIG), "merge", merge)
    node.NodeConnection(SimpleNamespace(address="a", user="b", port=22), lambda: None, lambda: None)  # type: ignore[arg-type, return-value]


@pytest.mark.slow
def test_other_commands_do_not_import_fabric() -> None:
    program = "import sys, ddpctl.cli.runs, ddpctl.cli.preflight; assert not {'fabric', 'invoke'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_sudo_where_it_wants_none(here: LocalTransport) -> None:
    try:
        subprocess.run(["sudo", "-n", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("sudo wants a password here, or is not there")
    assert here.run(["id", "-u"], password="").stdout == "0\n"
    assert here.run(["id", "-u"], password="unasked").stdout == "0\n"


@pytest.mark.slow
def test_sudo_is_given_a_password_once(here: LocalTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sudo in another language, which asks three times."""
    fake = tmp_path / "sudo"
    fake.write_text(
        "#!/bin/sh\nprompt=$3; shift 3\nfor i in 1 2 3; do printf '%s' \"$prompt\" >&2; IFS= read -r word\n"
        f'echo "$word" >>{tmp_path}/given; [ "$word" = right ] && exec "$@"; echo "Falsch." >&2; done; exit 1\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(RemoteError, match="does not accept"):
        here.run(["echo", "hi"], password="wrong", timeout=None)  # no deadline would end it
    assert (tmp_path / "given").read_text().split() == ["wrong"]
    ran = here.run(["echo", "hi"], password="right")
    assert (ran.stdout, ran.stderr) == ("hi\n", "")
