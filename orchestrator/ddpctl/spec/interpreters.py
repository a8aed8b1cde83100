"""Chooses the interpreters for a job: a Python on each host, all of them with the same torch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from packaging.version import InvalidVersion, Version
from pydantic import Field

from ddpctl.spec.bounds import Flag, Unicode
from ddpctl.spec.limits import MOST_PATHS

USUAL_TORCH = "2.13.0"  # proposed for installation if no host has torch
OLDEST = (3, 8)  # the oldest Python that the worker runs on


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter of one host; ``default``: it is used if the inventory names no interpreter."""

    path: Annotated[Unicode, Field(pattern=r"^(~/|/)[^\x00-\x1f]{1,4000}$")]
    version: Annotated[Unicode, Field(pattern=r"^3\.[0-9]{1,3}$")]
    torch: Annotated[Unicode, Field(pattern=r"^[!-~]{1,64}$")] | None = None
    default: Flag = False


@dataclass(frozen=True)
class PythonChoice:
    """A way to run the job: an interpreter for each host (empty: as in the inventory), and their torch.

    ``install``: the version of torch that ddpctl installs instead.
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
    """Return the possible choices, the best first:

    1. the same torch at the same path on all hosts, the newest torch first;
    2. the same torch at different paths;
    3. only if no torch is on all hosts: a torch that ddpctl installs, then python3 without torch.
    """
    usable = {host: [python for python in pythons if _is_usable(python)] for host, pythons in found.items()}
    versions = {host: {python.torch for python in pythons if python.torch} for host, pythons in usable.items()}
    shared = set.intersection(*versions.values()) if versions else set()
    same: list[PythonChoice] = []
    mixed: list[PythonChoice] = []
    for torch in sorted(shared, key=_release, reverse=True):
        having = {host: [python for python in pythons if python.torch == torch] for host, pythons in usable.items()}
        paths = [[python.path for python in pythons] for pythons in having.values()]
        common = [path for path in paths[0] if all(path in of_host for of_host in paths[1:])]
        same += [PythonChoice(dict.fromkeys(found, path), torch) for path in common]
        if not common:
            mixed.append(PythonChoice({host: pythons[0].path for host, pythons in having.items()}, torch))
    if same or mixed:
        return [*same, *mixed]
    newest = max((torch for each in versions.values() for torch in each if torch), key=_release, default=USUAL_TORCH)
    return [PythonChoice({}, install=newest.partition("+")[0]), PythonChoice({})]


def own_paths(choice: PythonChoice, found: Mapping[str, Sequence[Interpreter]]) -> dict[str, str]:
    """Return the interpreters that the inventory must name: an empty mapping if each is the default of its host."""
    default = {host: {python.path for python in pythons if python.default} for host, pythons in found.items()}
    return {} if all(path in default[host] for host, path in choice.paths.items()) else dict(choice.paths)


def _is_usable(python: Interpreter) -> bool:
    parts = python.version.split(".")
    return tuple(int(part) for part in parts[:2]) >= OLDEST


def _release(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
