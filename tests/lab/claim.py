"""Which labs there are: each claims a number, and with it a folder, a subnet and a network device.

The claim is a lock on a file that the kernel lets go when its holder dies, however it dies. A new lab first clears away
every lab with a free lock and a remaining folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path

from tests.lab.groups import Groups
from tests.lab.process import Identity, LabError, call

ROOT = Path("/run/ddpctl-lab")
NUMBERS = range(1, 250)
PREFIX = 22
_NETWORKS = IPv4Network("10.64.0.0/14"), IPv4Network("10.72.0.0/14")


class Claim:
    """A number of our own among the labs of this machine, held until `release` or our death."""

    def __init__(self, number: int, lock: int) -> None:
        self.number = number
        self.lock = lock
        self.groups = Groups(number)

    @property
    def folder(self) -> Path:
        return ROOT / str(self.number)

    @property
    def device(self) -> str:
        """The network device on this machine's side of the cable to the lab's switch."""
        return f"ddplab{self.number}"

    @property
    def networks(self) -> tuple[IPv4Network, IPv4Network]:
        """The network that this machine is on, and the hosts' own; room for a thousand hosts in each."""
        first, second = (next(islice(net.subnets(new_prefix=PREFIX), self.number, None)) for net in _NETWORKS)
        return first, second

    @property
    def private_network(self) -> str:
        return str(self.networks[1])

    def record(self, process: Identity) -> None:
        """Note a process of the lab at once: the sweep finds it by this if we die."""
        with open(self.folder / "processes", "a") as file:
            file.write(f"{process.pid} {process.start}\n")

    def recorded(self) -> list[Identity]:
        with contextlib.suppress(OSError):
            lines = (self.folder / "processes").read_text().splitlines()
            return [Identity(*map(int, line.split())) for line in lines]
        return []

    def clear(self) -> None:
        """Leave nothing of the lab: processes, then device and route, the control groups and the folder."""
        for process in self.recorded():
            process.kill()
        call(["ip", "link", "delete", self.device], check=False)
        call(["ip", "route", "delete", "unreachable", self.private_network], check=False)
        self.groups.remove()
        while self.folder.is_mount():
            call(["umount", "--lazy", str(self.folder)])
        with contextlib.suppress(FileNotFoundError):
            self.folder.rmdir()

    def release(self) -> None:
        self.clear()
        _lock_path(self.number).unlink()
        os.close(self.lock)
        with contextlib.suppress(OSError):  # another lab is still there
            ROOT.rmdir()


def claim() -> Claim:
    """Remove the remains of dead labs, then take the first free number."""
    sweep()
    for number in NUMBERS:
        if (lock := _try_lock(number)) is None:
            continue
        taken = Claim(number, lock)
        taken.clear()
        return taken
    raise LabError(f"all {len(NUMBERS)} labs are taken; `ls {ROOT}`")


def sweep() -> None:
    """Clear every lab of a dead owner."""
    for number in [*_numbers()]:
        if (lock := _try_lock(number)) is not None:
            Claim(number, lock).release()


def release_of_other(number: int) -> None:
    """End a lab that another process holds, by ending that process's hold: its recorded processes."""
    other = Claim(number, -1)
    other.clear()
    for _ in range(1200):  # the sweep of another lab may hold the lock while it clears what is left of this lab
        if (lock := _try_lock(number)) is not None:
            return Claim(number, lock).release()
        time.sleep(0.05)
    raise LabError(f"lab {number} is still held by the process that started it; end that one")


def _numbers() -> Iterator[int]:
    if ROOT.is_dir():
        yield from (int(path.stem) for path in sorted(ROOT.glob("*.lock")) if path.stem.isdecimal())


def _lock_path(number: int) -> Path:
    return ROOT / f"{number}.lock"


def _try_lock(number: int) -> int | None:
    """Return the lock as a file descriptor; ``None``: another lab holds it."""
    ROOT.mkdir(mode=0o755, exist_ok=True)
    try:
        lock = os.open(_lock_path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the last lab left and took the folder along, between our two steps
        return _try_lock(number)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == os.stat(_lock_path(number)).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):  # held; or let go and unlinked by its holder meanwhile
        pass
    os.close(lock)
    return None
