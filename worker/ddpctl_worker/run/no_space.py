"""Tells a full disk from other exhausted resources that also report "No space left on device"; reads their limits."""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping, Optional

from ddpctl_worker.run.last_output import TRACEBACK

DISK = "disk"
_CALL = '  File "'  # begins each call in a traceback; its source code follows
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]|PytorchStreamWriter failed writing file"
)
# Resource -> the words of Python, torch, watchdog and watchfiles around the error.
_RESOURCES = {
    "watches": re.compile(r"inotify (?:watch|add)|inotify_add_watch|watch limit reached|file watchers reached"),
    "memory": re.compile(r"/dev/shm|SemLock\(|</torch_\d"),
    "semaphores": re.compile(r"\bsemget\b"),
}
# Resource -> words that need no error number. An instance too many is EMFILE, which looks like too many open files.
_REACHED = {
    "watches": re.compile(r"watch limit reached"),
    "instances": re.compile(r"inotify instance limit reached"),
}
# Resource -> the cause in words; %s is the limit.
_WORDS = {
    "watches": "not the disk: this account has no inotify watch left, fs.inotify.max_user_watches = %s",
    "instances": "this account has no inotify instance left, fs.inotify.max_user_instances = %s",
    "memory": "not the disk: /dev/shm, which holds shared memory and semaphores, has no room left; its size is %s",
    "semaphores": "not the disk: the host has no System V semaphore left, kernel.sem = %s",
}
_FILES = {
    "watches": "/proc/sys/fs/inotify/max_user_watches",
    "instances": "/proc/sys/fs/inotify/max_user_instances",
    "semaphores": "/proc/sys/kernel/sem",
}


def find_full(text: str) -> Optional[str]:
    """Return the resource that an exception and its traceback name as full: DISK, or another one.

    ``None``: nothing is full. Of a chain of exceptions a full disk counts first. The source code of the innermost call
    tells which resource an error is about, but no source code is an error.
    """
    found = set()
    for block in text.split(TRACEBACK):
        call = ""
        for line in block.split("\n"):
            call = line if line.startswith(_CALL) else "%s\n%s" % (call, line)
            if _NO_SPACE.search(line) and not line.startswith("    "):
                about = line if "/" in line else call  # a line with a path says itself what is full
                named = [name for name, words in _RESOURCES.items() if words.search(about)]
                found.add(named[0] if named else DISK)
    found = found or {name for name, words in _REACHED.items() if words.search(text)}
    return DISK if DISK in found else min(found, default=None)


def describe_full(resource: Optional[str], limits: Mapping[str, str]) -> str:
    """Return the end of the message about a resource that is full; empty for a disk, which the message names itself."""
    words = _WORDS.get(resource or "")
    return "" if words is None else " (%s)" % (words % limits.get(resource or "", "unknown"))


def read_limits() -> Dict[str, str]:
    """Return the limits of this host, by resource."""
    limits = {}
    for resource, path in _FILES.items():
        try:
            with open(path, encoding="ascii") as file:
                limits[resource] = " ".join(file.read().split())
        except OSError:  # a kernel without it, or hidden by a container
            continue
    try:
        shm = os.statvfs("/dev/shm")
        limits["memory"] = "%d MB" % (shm.f_blocks * shm.f_frsize >> 20)
    except OSError:
        pass
    return limits
