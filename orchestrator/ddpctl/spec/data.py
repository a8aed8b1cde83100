"""``ddpctl push --data``: which files travel together, and the outcome. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.fold import group_by
from ddpctl.spec.limits import BUNDLE_BYTES, SINGLE_BYTES
from ddpctl.spec.push import Traffic, raise_for_hosts
from ddpctl_worker.wire import contract

Bundle = tuple[int, ...]  # indices of files, in order


def plan_bundles(sizes: Sequence[int], indices: Iterable[int]) -> list[Bundle]:
    """Return the files at ``indices`` as bundles: small files share a bundle, a large file is a bundle of its own.

    The same indices always give the same bundles, so that an interrupted push continues. Empty files travel with the
    listing. ``sizes`` has the bytes of every file.
    """
    bundles: list[Bundle] = []
    together: list[int] = []
    total = 0
    for index in indices:
        if sizes[index] >= SINGLE_BYTES:
            bundles.append((index,))
        elif sizes[index]:
            if total + sizes[index] > BUNDLE_BYTES:
                bundles.append(tuple(together))
                together, total = [], 0
            together.append(index)
            total += sizes[index]
    return [*bundles, tuple(together)] if together else bundles


def group_missing(missing: Mapping[str, Sequence[int]]) -> dict[tuple[str, ...], list[int]]:
    """Group files by the hosts that lack them: hosts -> indices of files.

    A bundle never holds a file that a host has already, and hosts that lack the same files get the same bundles.
    """
    lacking: dict[int, list[str]] = {}
    for host, indices in missing.items():
        for index in indices:
            lacking.setdefault(index, []).append(host)
    grouped = group_by(lambda index: tuple(lacking[index]), sorted(lacking))
    return {hosts: list(indices) for hosts, indices in grouped.items()}


@dataclass(frozen=True)
class DataNode:
    """A node after a push of data. ``path``: the absolute path of the data on the node; ``None`` after an error."""

    host: str
    path: str | None = None
    error: DdpctlError | None = None

    def to_json(self) -> dict[str, Any]:
        error = str(self.error) if self.error else None
        return {"host": self.host, "ok": self.error is None, "path": self.path, "error": error}


@dataclass(frozen=True)
class DataOutcome:
    """The outcome of ``ddpctl push --data``.

    ``size``: bytes of all files. ``link``: the entry of a job's ``links`` that leads to the data, (name, place).
    """

    cluster: str
    name: str
    version: str
    files: int
    size: int
    link: tuple[str, str] | None
    duration_s: float
    traffic: Traffic
    nodes: tuple[DataNode, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return all(node.error is None for node in self.nodes)

    def raise_for_errors(self) -> None:
        """Raise an error unless every host has the data.

        Raises:
            HostsFailed: a host has an error.
        """
        raise_for_hosts({node.host: node.error for node in self.nodes}, self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": contract.SCHEMA,
            "cluster": self.cluster,
            "ok": self.ok,
            "duration_s": round(self.duration_s, 3),
            "data": {"name": self.name, "version": self.version, "files": self.files, "bytes": self.size},
            "bytes": asdict(self.traffic),
            "links": dict([self.link]) if self.link else {},
            "nodes": [node.to_json() for node in self.nodes],
        }
