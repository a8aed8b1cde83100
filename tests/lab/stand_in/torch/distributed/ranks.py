"""The ranks of one node: started, watched and ended as torch's launcher does it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from .elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

if TYPE_CHECKING:  # a host may have Python 3.8, where Popen takes no parameter
    Process = subprocess.Popen[bytes]

AFTER_FAILURE_S = 30.0  # for the peers of a failed rank; no option of torch's changes it


class SignalException(Exception):
    def __init__(self, number: int) -> None:
        self.sigval = signal.Signals(number)
        super().__init__(f"Process {os.getpid()} got signal: {int(number)}")


def say(level: str, text: str) -> None:
    """Write a line of the launcher's log, in the form that torch gives it.

    The reader may be gone. torch's own log goes through `logging`, which ignores that.
    """
    now = time.strftime("%m%d %H:%M:%S", time.localtime()) + ".000000"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{level}{now} {os.getpid()} torch/distributed/ranks.py:1] {text}\n")
        sys.stderr.flush()


def run(
    name: str,
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    *,
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    patience: float = 30.0,
    interval: float = 0.1,
) -> None:
    """Run a command for each local rank; each environment has RANK and the variables that come on top of our own.

    Raises:
        ChildFailedError: a rank failed. All other ranks have been ended.
        SignalException: any of ``signals`` came. It was passed on to the ranks, and they have ended.
    """
    for word in signals.split(","):
        signal.signal(getattr(signal, word.strip()), _raise)
    ranks: list[Process] = []
    failures: dict[int, ProcessFailure] = {}
    ended = False
    try:
        for local, command in enumerate(commands):
            env = {**os.environ, **environments[local]}
            ranks.append(subprocess.Popen(command, env=env, start_new_session=True))
        left = True
        while left and not failures:
            time.sleep(interval)
            left = any(rank.poll() is None for rank in ranks)
            _note(ranks, environments, failures)
        _end(ranks, signal.SIGTERM, AFTER_FAILURE_S)
        _note(ranks, environments, failures)
    except SignalException as error:
        say("W", f"Received {int(error.sigval)} death signal, shutting down workers")
        _end(ranks, error.sigval, patience)
        ended = True
        raise
    finally:
        if not ended:  # a second signal, or the second rank's command does not start
            _end(ranks, signal.SIGTERM, patience)
    if failures:
        first = min(failures.values(), key=lambda failure: failure.timestamp)
        text = f"failed (exitcode: {first.exitcode}) local_rank: {first.local_rank} (pid: {first.pid})"
        say("E", f"{text} of binary: {commands[0][0]}")
        raise ChildFailedError(name, failures)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise SignalException(number)


def _note(
    ranks: Sequence[Process], environments: Sequence[Mapping[str, str]], failures: dict[int, ProcessFailure]
) -> None:
    for local, process in enumerate(ranks):
        rank = int(environments[local]["RANK"])
        if process.poll() and rank not in failures:
            error_file = environments[local].get("TORCHELASTIC_ERROR_FILE", "")
            failures[rank] = ProcessFailure(local, process.pid, process.returncode, error_file)


def _end(ranks: Sequence[Process], number: signal.Signals, patience: float) -> None:
    """Send the signal to the group of each live rank, and SIGKILL to each rank that is alive after ``patience``."""
    for process in ranks:
        if process.poll() is None:
            say("W", f"Sending process {process.pid} closing signal {number.name}")
            _signal(process, number)
    until = time.monotonic() + patience
    for process in ranks:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
    for process in ranks:
        if process.poll() is None:
            say("W", f"Unable to shutdown process {process.pid} via {number.name}, forcefully exiting via SIGKILL")
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
