"""Which Python of the hosts a job is to use: of what was found on each, what all of them can use together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from ddpctl.spec.limits import MOST_PATHS

USUAL_TORCH = "2.13.0"  # installed where no host has one
OLDEST = (3, 8)  # what the worker runs on


@dataclass(frozen=True)
class Interpreter:
    """A Python of one host; ``default``: the one that runs where the inventory names none."""

    path: str
    version: str
    torch: str | None = None
    default: bool = False


@dataclass(frozen=True)
class PythonChoice:
    """One way to run the job: an interpreter for each host (none: what the inventory says), with the torch that it has.

    ``install``: the torch that ddpctl is to install instead.
    """

    paths: Mapping[str, str]
    torch: str | None = None
    install: str | None = None

    @property
    def label(self) -> str:
        if self.install is not None:
            return f"let ddpctl install torch {self.install} on every host (environment: mode: managed)"
        if self.torch is None:
            return "the hosts' python3, without torch"
        distinct = list(dict.fromkeys(self.paths.values()))
        where = distinct[0] if len(distinct) == 1 else "another path on each host: " + ", ".join(distinct[:MOST_PATHS])
        return f"torch {self.torch} in {where or 'python3'}"


def choices(found: Mapping[str, Sequence[Interpreter]]) -> list[PythonChoice]:
    """What the hosts can use, best first: the same torch at the same path on all of them, then at several paths, the
    newest first; where there is no such torch, one that ddpctl installs, and the plain python3."""
    usable = {host: [one for one in pythons if _usable(one)] for host, pythons in found.items()}
    versions = {host: {one.torch for one in pythons if one.torch} for host, pythons in usable.items()}
    shared = set.intersection(*versions.values()) if versions else set()
    same: list[PythonChoice] = []
    mixed: list[PythonChoice] = []
    for torch in sorted(shared, key=_release, reverse=True):
        having = {host: [one for one in pythons if one.torch == torch] for host, pythons in usable.items()}
        first, *others = having.values()
        common = [one for one in first if all(any(one.path == each.path for each in other) for other in others)]
        for one in common:
            same.append(PythonChoice(dict.fromkeys(found, one.path), torch))
        if not common:
            mixed.append(PythonChoice({host: pythons[0].path for host, pythons in having.items()}, torch))
    if same or mixed:
        return [*same, *mixed]
    newest = max((torch for each in versions.values() for torch in each if torch), key=_release, default=USUAL_TORCH)
    return [PythonChoice({}, install=newest.partition("+")[0]), PythonChoice({})]


def own_paths(choice: PythonChoice, found: Mapping[str, Sequence[Interpreter]]) -> dict[str, str]:
    """The interpreters that the inventory has to name: all, unless each host's is the one that runs there anyway."""
    default = {host: {one.path for one in pythons if one.default} for host, pythons in found.items()}
    return {} if all(path in default[host] for host, path in choice.paths.items()) else dict(choice.paths)


def _usable(one: Interpreter) -> bool:
    parts = one.version.split(".")
    return tuple(int(part) for part in parts[:2]) >= OLDEST


def _release(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
