"""Locks on files below base_dir, which hosts may share: waited for as long as the controller is there, and no longer.

A lock ends with the process that holds it (flock), so a killed worker leaves none behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Iterator

from ddpctl_worker.link import Channel, WorkerError

ENVS = ".gc.lock"  # in the folder of environments: shared by all who install, for a gc alone
FOREVER = float("inf")
_PAUSE_S = 0.1


@contextlib.contextmanager
def shared(path: str, channel: Channel) -> Iterator[None]:
    """Hold ``path`` (made if need be) together with others who share it.

    Raises:
        WorkerError: interrupted, the controller went away.
    """
    with _locked(path, fcntl.LOCK_SH, channel, FOREVER):
        yield


@contextlib.contextmanager
def alone(path: str, channel: Channel, patience: float = FOREVER) -> Iterator[None]:
    """Hold ``path`` (made if need be) alone, after ``patience`` seconds of waiting at most.

    Raises:
        WorkerError: interrupted, the controller went away; or busy, somebody else still holds it.
    """
    with _locked(path, fcntl.LOCK_EX, channel, patience):
        yield


@contextlib.contextmanager
def _locked(path: str, how: int, channel: Channel, patience: float) -> Iterator[None]:
    deadline = time.monotonic() + patience
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while not _taken(fd, how):
            if time.monotonic() >= deadline:
                raise WorkerError("busy", "an environment is being installed here", "try again when it is done")
            if channel.closed.wait(_PAUSE_S):
                raise WorkerError("interrupted", "the controller went away")
        yield
    finally:
        os.close(fd)


def _taken(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
