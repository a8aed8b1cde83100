"""Chooses the checkpoints that a start resumes from, and which host copies which file from where. Pure.

complete.py decides which checkpoints are complete; ``ddpctl checkpoints`` uses the same function.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ddpctl_worker.rules.complete import Chosen, Manifest, choose_newest_complete, content, in_order
from ddpctl_worker.rules.entries import member_of, save_of, series_of
from ddpctl_worker.rules.order import oldest_first, when_of
from ddpctl_worker.rules.unite import Saved

Row = Mapping[str, Any]  # writer, entry, time, clock, attempt, and version ("": a part that is incomplete by itself)


class Kept(NamedTuple):
    """A valid manifest, and the host that has all files of the manifest."""

    host: str
    manifest: Manifest


class Restore(NamedTuple):
    """A checkpoint that some hosts have to copy.

    ``hosts`` lack at least one file of ``chosen``. ``sources`` maps a path to the places that have the file, each as
    (host, writer).
    """

    chosen: Chosen
    hosts: List[str]
    sources: Dict[str, List[Tuple[str, str]]]

    def order(self) -> Dict[str, Any]:
        """Return the request that each of the hosts gets."""
        return {**self.chosen._asdict(), "sources": self.sources}


def newest_of_series(manifests: Iterable[Manifest]) -> List[Chosen]:
    """Return the newest complete checkpoint of each series that the manifests describe, the newest first.

    A name without a step (``best.pt``) is a series of its own: a script that saves several files needs all of the files
    again. If each rank saves its own file, the files of all ranks of the chosen save are returned.
    """
    entries: Dict[str, List[Manifest]] = {}
    for manifest in manifests:
        same = entries.setdefault(manifest["entry"], [])
        if manifest not in same:
            same.append(manifest)
    complete = in_order(chosen for chosen in map(choose_newest_complete, entries.values()) if chosen is not None)
    partly = partial(complete)
    complete = [chosen for chosen in complete if chosen.entry not in partly]
    wanted = latest([chosen.entry for chosen in complete])
    return [chosen for chosen in reversed(complete) if chosen.entry in wanted]


def partial(complete: Sequence[Union[Chosen, Saved]]) -> Set[str]:
    """Return the entries of a newest save that lacks a rank's file or a shard of the save before it.

    The host of that rank was lost, or the rank was killed while it saved. ``complete``: oldest first.

    Only the newest save is checked. So a training that continues with fewer ranks, or saves other files, loses at most
    its first such save, and only until the second save exists.
    """
    families: Dict[str, Dict[str, List[Union[Chosen, Saved]]]] = {}
    for chosen in complete:
        save = save_of(chosen.entry)
        saves = families.setdefault(_family(chosen.entry), {})
        saves[save] = [*saves.pop(save, []), chosen]  # moves the save to the end: the order is oldest first
    lacking: Set[str] = set()
    for saves in families.values():
        before, last = [[], *saves.values()][-2:]
        if not _members(before) <= _members(last):
            lacking.update(chosen.entry for chosen in last)
    return lacking


def _members(save: Iterable[Union[Chosen, Saved]]) -> Set[Tuple[Optional[str], Optional[str]]]:
    """Return the files of single ranks or shards in a save, by names that do not change from save to save."""
    names = {(series_of(chosen.entry), member_of(path)) for chosen in save for path in chosen.files}
    return {(series, member) for series, member in names if member is not None or "*" in save_of(series or "")}


def latest(entries: Sequence[str]) -> Set[str]:
    """Return the last entry of each series, and the other entries of the same save. ``entries``: oldest first."""
    last = {_family(entry): save_of(entry) for entry in entries}
    return {entry for entry in entries if save_of(entry) == last[_family(entry)]}


def _family(entry: str) -> str:
    """Return the part of the name that all ranks and all saves of a training share."""
    save = save_of(entry)
    return series_of(save) or save


def all_have(summaries: Mapping[str, Sequence[Row]]) -> bool:
    """Return whether no host has to restore anything: every host has all newest entries, or no host has any entry.

    Two versions of an entry may be parts of a checkpoint that is not united yet, so the answer is False then.
    """
    every = [row for rows in summaries.values() for row in rows]
    if not all(row["version"] for row in every):
        return False
    ordered = oldest_first(every, when_of, lambda row: (row["version"], row["writer"]))
    last = latest(list({row["entry"]: None for row in reversed(ordered)})[::-1])
    wanted = {(row["entry"], row["version"]) for row in every if row["entry"] in last}
    own = {
        host: {(row["entry"], row["version"]) for row in rows if row["writer"] == host}
        for host, rows in summaries.items()
    }
    return len(wanted) == len(last) and all(wanted <= rows for rows in own.values())


def plan_restore(held: Sequence[Kept], hosts: Sequence[str]) -> List[Restore]:
    """Return the copies that give all of ``hosts`` the newest complete checkpoints in their own folders."""
    restores = []
    for chosen in newest_of_series(kept.manifest for kept in held):
        wanted = content(chosen.files)
        parts = [kept for kept in held if kept.manifest["entry"] == chosen.entry]
        own = {kept.host: content(kept.manifest["files"]) for kept in parts if kept.manifest["host"] == kept.host}
        lacking = [host for host in hosts if own.get(host) != wanted]
        if lacking:
            restores.append(
                Restore(chosen, lacking, {path: _where(path, file, parts) for path, file in wanted.items()})
            )
    return restores


def _where(path: str, sha256: str, parts: Sequence[Kept]) -> List[Tuple[str, str]]:
    having = [kept for kept in parts if content(kept.manifest["files"]).get(path) == sha256]
    return sorted({(kept.host, kept.manifest["host"]) for kept in having})
