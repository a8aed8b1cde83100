"""The identity of a job, and the place where a run was started. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ddpctl.spec.bounds import Count, Short
from ddpctl.spec.values import is_name


class JobId(NamedTuple):
    """The identity of a job. Its name alone is not enough: many projects on the same hosts have a job ``train``."""

    cluster: str
    project: str
    job: str

    def __str__(self) -> str:
        """Return ``lab/exp1-7f3a/train``: the spelling in messages and the path of its checkpoints on a node."""
        return "/".join(self)


@dataclass(frozen=True)
class Origin:
    """The place where a run was started: account, machine, and the folder of the inventory file with its inode."""

    account: Short
    machine: Short
    folder: Short
    inode: Count

    def __str__(self) -> str:
        return f"{self.account}@{self.machine}:{self.folder}"

    def is_same_folder(self, other: Origin) -> bool:
        """Return whether both are the same folder.

        Two equal signs of three are enough: a moved folder has another path, a folder on a shared file system may be
        used from another machine.
        """
        signs = (self.machine == other.machine, self.folder == other.folder, self.inode == other.inode)
        return sum(signs) >= 2


def as_name(text: str, otherwise: str) -> str:
    """Return ``text`` as a valid name, with hyphens for invalid characters; ``otherwise`` if no valid name is left."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:63]
    return name if is_name(name) else otherwise
