"""Control groups of a lab. Each host has a group of its own, which is the root of the tree that the host sees. A group
can be frozen, and its memory limited. Units of a host with systemd can have limits, if the lab is told so.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from tests.lab.process import LabError, wait_until

VERSION_2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
VERSION_1_MEMORY = Path("/sys/fs/cgroup/memory")
FLAGS_OF_MOUNTS = {"rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec", "xattr"}


class Groups:
    """The groups of a lab, by the name of the host."""

    def __init__(self, number: int) -> None:
        root = next((root for root in VERSION_2 if (root / "cgroup.procs").exists()), None)
        self.lab = root / f"ddplab{number}" if root else None
        self.memory = VERSION_1_MEMORY / f"ddplab{number}" if VERSION_1_MEMORY.is_dir() else None
        self.version_1 = {root / f"ddplab{number}": options for root, options in _read_version_1().items()}

    def host(self, name: str) -> Path | None:
        """The host's group; ``None`` on a machine without version 2, or without permission to create a group."""
        if not self.lab:
            return None
        group = self.lab / name
        try:
            group.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return group

    def of_a_process(self, name: str) -> list[Path]:
        """The groups for a process started in the host; an empty list while the host is frozen, so that tests can look
        in.
        """
        if self.frozen(name):
            return []
        groups = [self.host(name), self.memory / name if self.memory else None]
        return [group for group in groups if group and group.is_dir()]

    def make_limitable(self, name: str) -> dict[Path, str]:
        """Let systemd in the host limit memory and processes of its units.

        Returns the host's groups of version 1 with the mount options of their hierarchies. Systemd must see a group of
        the host in each of them: it makes its slices at the root of what it sees.
        """
        if not self.version_1:
            self._pass_down(name, "+memory +pids")
        return {_make_version_1(top, name): options for top, options in self.version_1.items()}

    def frozen(self, name: str) -> bool:
        group = self.host(name)
        return group is not None and "frozen 1" in (group / "cgroup.events").read_text()

    def freeze(self, name: str, frozen: bool) -> None:
        group = self.host(name)
        if not group:
            raise LabError("freezing a host needs control groups of version 2")
        (group / "cgroup.freeze").write_text(str(int(frozen)))
        events, wanted = group / "cgroup.events", f"frozen {int(frozen)}"
        wait_until(lambda: wanted in events.read_text(), f"{name} does not freeze or thaw")

    def thaw(self, name: str) -> None:
        """For a host that lost its power while it was frozen."""
        if group := self.host(name):
            (group / "cgroup.freeze").write_text("0")

    def limit_memory(self, name: str, limit: str, pids: list[int]) -> None:
        """Cap what the processes and their children use together; beyond it the kernel kills, as when out of memory."""
        if self.memory:
            group, file = self.memory / name, "memory.limit_in_bytes"
            group.mkdir(parents=True, exist_ok=True)
        else:
            group, file = self._pass_down(name, "+memory"), "memory.max"
        (group / file).write_text(limit)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def _pass_down(self, name: str, controllers: str) -> Path:
        """Return the host's group of version 2, which gets these controllers."""
        group = self.host(name)
        if not group:
            raise LabError("a limit of memory or processes needs control groups")
        for parent in (group.parent.parent, group.parent):
            (parent / "cgroup.subtree_control").write_text(controllers)
        return group

    def remove(self) -> None:
        """Groups that processes have just left stay busy for a moment."""
        for top in filter(None, (self.lab, *self.version_1)):
            wait_until(partial(_remove_tree, top), f"control group {top} is still in use", pause=0.02)


def _read_version_1() -> dict[Path, str]:
    """Return the mount points of version 1, each with the options that name its hierarchy."""
    rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return {Path(row[1]): _name_hierarchy(row[3].split(",")) for row in rows if row[2] == "cgroup"}


def _name_hierarchy(options: list[str]) -> str:
    words = [word for word in options if word not in FLAGS_OF_MOUNTS and not word.startswith("release_agent=")]
    named = any(word.startswith("name=") for word in words)
    return ",".join(["none", *words] if named else words)


def _make_version_1(top: Path, name: str) -> Path:
    for group in (top, top / name):
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # without them no process may enter the group
            if (group / file).exists():
                (group / file).write_text((group.parent / file).read_text())
    return top / name


def _remove_tree(top: Path) -> bool:
    """From the leaves; the files in a group are the kernel's."""
    try:
        for path, _, _ in os.walk(top, topdown=False):
            os.rmdir(path)
    except OSError:
        return False
    return True
