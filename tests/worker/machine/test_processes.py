"""Identities of processes: a number that was given anew is not the process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker.machine import proc, processes
from ddpctl_worker.record import judgement
from ddpctl_worker.record.paths import RunPaths
from tests.worker.node import eventually


@contextlib.contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "300"]) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.slow
def test_a_reused_pid_is_not_the_process() -> None:
    with _sleeper() as child:
        who = processes.identify(child.pid)
        assert who is not None
        assert processes.is_alive(who)
        other = who._replace(start=who.start - 1)
        assert not processes.is_alive(other)
        assert processes.filter_alive(who, other) == [child.pid]
        assert processes.filter_alive(other) == []  # so a dead guardian's number spares no process
        assert not processes.send(other, signal.SIGKILL)
        assert not processes.send(who._replace(boot="another boot"), signal.SIGKILL)
        assert child.poll() is None
        assert processes.send(who, signal.SIGKILL)
        child.wait()
        assert not processes.is_alive(who)
        assert not processes.send(who, signal.SIGKILL)


@pytest.mark.slow
def test_identity_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.8, or a kernel before 5.3."""
    monkeypatch.delattr(os, "pidfd_open")
    with _sleeper() as child:
        who = processes.identify(child.pid)
        assert who is not None
        assert not processes.send(who._replace(start=1), signal.SIGKILL)
        assert processes.send(who, signal.SIGKILL)
        child.wait()
        assert not processes.send(who, signal.SIGKILL)


@pytest.mark.slow
def test_stat_of_a_process_with_a_wild_name(tmp_path: Path) -> None:
    program = tmp_path / ") R 1 (("
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "300"]) as child:
        eventually(lambda: (found := proc.read_stat(child.pid)) and "R 1" in found.name, "exec")
        found = proc.read_stat(child.pid)
        assert found is not None
        assert found.parent == os.getpid()
        assert found.name.startswith(") R 1 ((")
        child.kill()


@pytest.mark.slow
def test_a_guardian_that_forks_during_the_look_is_still_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look lists the processes, then reads their command lines. In between, the guardian's pid has changed."""
    run = tmp_path.name
    words = processes.guardian_argv_tail(run, "node0")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words]) as guardian:
        try:
            eventually(lambda: processes.guardians(run, "node0"), "the guardian")
            seen = proc.snapshot()
            looks: list[dict[int, proc.Stat]] = [{}, seen]
            monkeypatch.setattr(proc, "snapshot", lambda: looks.pop(0))
            assert judgement._coming(RunPaths(str(tmp_path / run / "node0")), "node0")
        finally:
            guardian.kill()
