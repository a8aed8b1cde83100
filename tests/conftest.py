"""The fixtures that every test may ask for: real hosts, interpreters with a torch, and the installed `ddpctl`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, LabError, interpreters, systemd_disk
from tests.lab.command import Ddpctl

# A runner in the background ignores SIGINT, a runner under nohup ignores SIGHUP, and every child inherits this. Tests
# need Ctrl-C as a person presses it, and a terminal that is closed.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.suite.plugin"]
MakeLab = Callable[..., Lab]


def _labs() -> Iterator[MakeLab]:
    with contextlib.ExitStack() as stack:
        yield lambda count, **options: stack.enter_context(_start_lab(count, **options))


def _start_lab(count: int, **options: Any) -> Lab:
    """A lab. A machine on which no host can boot systemd skips the test; where the lab is required, it then fails."""
    if not options.get("systemd"):
        return Lab(count, **options)
    if reason := systemd_disk.missing():
        pytest.skip(reason)
    try:
        return Lab(count, **options)
    except LabError as error:
        pytest.skip(f"no host boots systemd here: {error}")


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """`make_lab(3, fabric=True)`: a separate lab, for a single test. Three hosts take a fifth of a second, and with
    `systemd=True` about two seconds."""
    yield from _labs()


@pytest.fixture(scope="module")
def make_module_lab() -> Iterator[MakeLab]:
    """The same for all tests of a file."""
    yield from _labs()


@pytest.fixture(scope="module")
def lab3_module(make_module_lab: MakeLab) -> Lab:
    """Three hosts for all tests of a file. What a test does to them stays: see `lab3`."""
    return make_module_lab(3)


@pytest.fixture
def lab3(lab3_module: Lab) -> Iterator[Lab]:
    """Three hosts, shared by the tests of a file, healed after each; the files on their disks stay."""
    yield lab3_module
    lab3_module.heal()


@pytest.fixture(scope="session")
def python213() -> str:
    """An interpreter with torch 2.13, on this machine and on every host."""
    return _interpreter(interpreters.python213(), "tests/setup/lab-interpreter")


@pytest.fixture(scope="session", autouse=True)
def _own_slots(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs on this machine take slots of their own: tests run side by side."""
    os.environ["DDPCTL_SLOTS_DIR"] = str(tmp_path_factory.mktemp("machine") / "slots")


@pytest.fixture(scope="session")
def stand_in() -> str:
    """An interpreter with the stand-in for torch 2.13, on this machine and on every host: made anew when the stand-in
    has changed, in a fifth of a second."""
    return _interpreter(interpreters.make_stand_in(), "tests/setup/lab-interpreter")


@pytest.fixture(scope="session")
def python113() -> str:
    """An interpreter with torch 1.13, on this machine and on every host."""
    return _interpreter(interpreters.python113(), "tests/setup/system-packages")


def _interpreter(path: Path, installer: str) -> str:
    if not interpreters.has_torch(path):
        pytest.skip(f"no torch for {path}: {installer} installs it")
    return str(path)


@pytest.fixture
def ddpctl(tmp_path: Path) -> Iterator[Ddpctl]:
    """The installed command: `ddpctl("status", "job", home=...)`; `.start(...)` runs it beside the test."""
    folder = tmp_path / "ddpctl"
    folder.mkdir()
    runner = Ddpctl(folder)
    yield runner
    runner.stop()
