"""Unites the manifests of all hosts into the list of a job's checkpoints. Pure; ddpctl calls it on the hosts'
answers.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.complete import (
    Manifest,
    SavedFile,
    choose_newest_complete,
    content,
    list_missing,
    sort_by_time,
    when,
)
from ddpctl_worker.rules.order import When, oldest_first, when_of


class SavedPart(NamedTuple):
    """The part of a checkpoint that one host wrote. ``holders``: hosts that have this part now. ``same``: hosts that
    have the same content, no matter which host wrote it.
    """

    manifest: Manifest
    holders: Tuple[str, ...]
    same: Tuple[str, ...]


class Saved(NamedTuple):
    """One checkpoint of the job. ``parts``: newest first. ``missing``: in words, why it is incomplete. ``files``: the
    files of a complete checkpoint, exactly as a restart gets them.
    """

    entry: str
    step: Optional[int]
    time: str
    size: int
    parts: Tuple[SavedPart, ...]
    when: When
    missing: Tuple[str, ...]
    files: Mapping[str, SavedFile] = {}

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def hosts(self) -> Tuple[str, ...]:
        """Return every host that has a part of the checkpoint, or a copy of a part, or the same content from an earlier
        start.
        """
        return tuple(sorted({host for part in self.parts for host in part.same}))

    @property
    def held(self) -> int:
        """Return the number of hosts that have the file with the fewest copies."""
        found: Dict[Tuple[str, str], Set[str]] = {}
        for part in self.parts:
            for file in content(part.manifest["files"]).items():
                found.setdefault(file, set()).update(part.holders)
        return min((len(found.get(file, ())) for file in content(dict(self.files)).items()), default=1)


def unite(held: Mapping[str, Iterable[Manifest]]) -> List[Saved]:
    """Return a checkpoint for every name, newest first. ``held``: the valid manifests that each host has, copies
    included.

    If a name was used again and the newer save is incomplete, the older save is listed: a restart resumes from it.
    """
    parts: Dict[str, List[Tuple[Manifest, Set[str]]]] = {}
    for holder in sorted(held):
        for manifest in held[holder]:
            copies = parts.setdefault(manifest["entry"], [])
            holders = next((holders for other, holders in copies if other == manifest), None)
            if holders is None:
                copies.append((manifest, {holder}))
            else:
                holders.add(holder)
    found = [_saved(entry, copies) for entry, copies in parts.items()]
    return newest_first(found)


def newest_first(found: Iterable[Saved]) -> List[Saved]:
    """Return the checkpoints in the order of ``complete.in_order``, reversed."""
    return oldest_first(found, lambda saved: saved.when, lambda saved: sorted(content(dict(saved.files)).items()))[::-1]


def _saved(entry: str, found: List[Tuple[Manifest, Set[str]]]) -> Saved:
    same: Dict[str, Set[str]] = {}
    for manifest, holders in found:
        same.setdefault(manifest["version"], set()).update(holders)
    order = sort_by_time([manifest for manifest, _ in found])
    parts = [
        SavedPart(manifest, tuple(sorted(holders)), tuple(sorted(same[manifest["version"]])))
        for manifest, holders in sorted(found, key=lambda pair: order.index(pair[0]), reverse=True)
    ]
    chosen = choose_newest_complete([part.manifest for part in parts])
    if chosen is not None:
        wanted = content(chosen.files).items()
        having = tuple(part for part in parts if wanted & content(part.manifest["files"]).items())
        size = sum(file["size"] for file in chosen.files.values())
        return Saved(entry, chosen.step, chosen.time, size, having, when(chosen), (), chosen.files)
    missing = list_missing([part.manifest for part in parts])
    parts = _of_one_save(parts)
    newest = parts[0].manifest
    size = sum(part.manifest["size"] for part in parts)
    return Saved(entry, newest["step"], newest["time"], size, tuple(parts), when_of(newest), tuple(missing))


def _of_one_save(parts: List[SavedPart]) -> List[SavedPart]:
    """Return the newest part of each host that the newest attempt wrote: the user sees it if nothing is complete."""
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
