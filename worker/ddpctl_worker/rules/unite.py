"""Checkpoints of a job, put together from the manifests of its hosts. Pure; ddpctl does the same with their answers."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.complete import File, Manifest, best, content, lacking, newest_last, when
from ddpctl_worker.rules.order import When, oldest_first, when_of


class SavedPart(NamedTuple):
    """What one host wrote of a checkpoint, and on which hosts it lies now. ``same``: those that have the same content,
    no matter who wrote it."""

    manifest: Manifest
    holders: Tuple[str, ...]
    same: Tuple[str, ...]


class Saved(NamedTuple):
    """One checkpoint of the job. ``parts``: newest first. ``missing`` says in words why it is not complete; ``files``
    are those of a complete one, the very ones that a restart gets."""

    entry: str
    step: Optional[int]
    time: str
    size: int
    parts: Tuple[SavedPart, ...]
    when: When
    missing: Tuple[str, ...]
    files: Mapping[str, File] = {}

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def hosts(self) -> Tuple[str, ...]:
        """Every host that has a part of it, or a copy of one, or has got the same from others before a start."""
        return tuple(sorted({host for part in self.parts for host in part.same}))

    @property
    def held(self) -> int:
        """On how many hosts each of its files lies at least."""
        found: Dict[Tuple[str, str], Set[str]] = {}
        for part in self.parts:
            for file in content(part.manifest["files"]).items():
                found.setdefault(file, set()).update(part.holders)
        return min((len(found.get(file, ())) for file in content(dict(self.files)).items()), default=1)


def unite(held: Mapping[str, Iterable[Manifest]]) -> List[Saved]:
    """Every name, newest first. ``held``: the valid manifests that each host has, its own and those of copies.

    Where a name was used again and the newer save is not complete, the older one is listed: a restart resumes from it.
    """
    parts: Dict[str, List[Tuple[Manifest, Set[str]]]] = {}
    for holder in sorted(held):
        for manifest in held[holder]:
            known = parts.setdefault(manifest["entry"], [])
            holders = next((holders for one, holders in known if one == manifest), None)
            if holders is None:
                known.append((manifest, {holder}))
            else:
                holders.add(holder)
    found = [_saved(entry, known) for entry, known in parts.items()]
    return newest_first(found)


def newest_first(found: Iterable[Saved]) -> List[Saved]:
    """In the order of ``complete.in_order``."""
    return oldest_first(found, lambda one: one.when, lambda one: sorted(content(dict(one.files)).items()))[::-1]


def _saved(entry: str, found: List[Tuple[Manifest, Set[str]]]) -> Saved:
    same: Dict[str, Set[str]] = {}
    for manifest, holders in found:
        same.setdefault(manifest["version"], set()).update(holders)
    order = newest_last([manifest for manifest, _ in found])
    parts = [
        SavedPart(manifest, tuple(sorted(holders)), tuple(sorted(same[manifest["version"]])))
        for manifest, holders in sorted(found, key=lambda one: order.index(one[0]), reverse=True)
    ]
    chosen = best([part.manifest for part in parts])
    if chosen is not None:
        wanted = content(chosen.files).items()
        having = tuple(part for part in parts if wanted & content(part.manifest["files"]).items())
        size = sum(file["size"] for file in chosen.files.values())
        return Saved(entry, chosen.step, chosen.time, size, having, when(chosen), (), chosen.files)
    missing = lacking([part.manifest for part in parts])
    parts = _of_one_save(parts)
    newest = parts[0].manifest
    size = sum(part.manifest["size"] for part in parts)
    return Saved(entry, newest["step"], newest["time"], size, tuple(parts), when_of(newest), tuple(missing))


def _of_one_save(parts: List[SavedPart]) -> List[SavedPart]:
    """The newest part of each host that the newest attempt wrote: for a person, where nothing is complete."""
    attempt = attempt_of(parts[0].manifest)
    names: Set[str] = set()
    writers: Set[str] = set()
    found = []
    for part in parts:
        new = part.manifest["host"] not in writers and not names.issuperset(part.manifest["files"])
        if new and attempt_of(part.manifest) == attempt:
            found.append(part)
        names.update(part.manifest["files"])
        writers.add(part.manifest["host"])
    return found
