"""The installed command, and a test that needs a lab on a machine without a lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.command import Ddpctl
from tests.lab.disk import CHECKOUT


def test_a_run_to_the_end(ddpctl: Ddpctl) -> None:
    done = ddpctl("--help").ok()
    assert "Usage" in done.stdout
    assert done.stderr == ""


def test_an_error_is_told(ddpctl: Ddpctl) -> None:
    done = ddpctl("no-such-command")
    assert done.rc == 2
    with pytest.raises(AssertionError, match="no-such-command"):
        done.ok()


def test_beside_the_test(ddpctl: Ddpctl, tmp_path: Path) -> None:
    run = ddpctl.start("--help", home=tmp_path, cwd=tmp_path)
    assert run.wait_for("Usage: (.*)").group(1)
    with pytest.raises(AssertionError, match="never came"):
        run.wait_for("what it does not say")
    assert run.wait().rc == 0


def test_at_a_terminal(ddpctl: Ddpctl) -> None:
    run = ddpctl.start("--help", terminal=True)
    assert run.wait().rc == 0
    assert "\x1b[" in run.stdout


def test_the_signal_of_a_terminal(ddpctl: Ddpctl, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "inventory.yaml")  # nobody writes to it, so the command waits for ever
    run = ddpctl.start("ps", inventory=tmp_path / "inventory.yaml")
    run.signal(signal.SIGKILL)
    assert run.wait().rc == -signal.SIGKILL


@pytest.mark.parametrize(("required", "word"), [("0", "1 skipped"), ("1", "1 error")])
def test_without_a_lab(required: str, word: str) -> None:
    """A machine without the tools, simulated by a PATH without them."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/lab/test_hosts.py",
        "-k",
        "openssh_reaches",
    ]
    env = {"PATH": "/nonexistent", "DDPCTL_REQUIRE_LAB": required}
    done = subprocess.run(argv, cwd=CHECKOUT, env=env, check=False, capture_output=True, text=True)
    assert word in done.stdout
    assert "system-packages" in done.stdout or required == "0"
