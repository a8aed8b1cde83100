"""Whose a run is: the identity of its job, and where it was started. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ddpctl.spec.values import is_name


class JobId(NamedTuple):
    """A job's identity. Its name alone is not enough: on the same hosts many projects have a job ``train``."""

    cluster: str
    project: str
    job: str

    def __str__(self) -> str:
        """As the nodes spell it, and the path of its checkpoints there: ``lab/exp1-7f3a/train``."""
        return "/".join(self)


@dataclass(frozen=True)
class Origin:
    """Where a run was started: the account, its machine, and the folder of the inventory file with its inode."""

    account: str
    machine: str
    folder: str
    inode: int

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Origin:
        return Origin(**data)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.account}@{self.machine}:{self.folder}"

    def is_same_folder(self, other: Origin) -> bool:
        """Whether both are the same folder. Two of three signs are enough: a folder that was moved has another path,
        and one of a shared file system has another machine."""
        signs = (self.machine == other.machine, self.folder == other.folder, self.inode == other.inode)
        return sum(signs) >= 2


def as_name(text: str, otherwise: str) -> str:
    """``text`` with everything that a name cannot hold replaced by a hyphen; ``otherwise`` if nothing is left."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:63]
    return name if is_name(name) else otherwise
