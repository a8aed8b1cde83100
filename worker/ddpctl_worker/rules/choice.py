"""Which complete checkpoints of a job a start resumes from, and which host gets which of their files from where. Pure.

What is complete is decided in ``complete.py``, of which ``ddpctl checkpoints`` asks the same.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ddpctl_worker.rules.complete import Chosen, Manifest, best, content, in_order
from ddpctl_worker.rules.entries import member_of, save_of, series_of
from ddpctl_worker.rules.order import oldest_first, when_of
from ddpctl_worker.rules.unite import Saved

Row = Mapping[str, Any]  # of a summary: writer, entry, version ("": not complete by itself), time, clock and attempt


class Kept(NamedTuple):
    """A valid manifest, and the host on which everything that it names lies."""

    host: str
    manifest: Manifest


class Restore(NamedTuple):
    """``hosts`` lack something of ``chosen``; ``sources``: path -> where it is, as (host, writer)."""

    chosen: Chosen
    hosts: List[str]
    sources: Dict[str, List[Tuple[str, str]]]

    def order(self) -> Dict[str, Any]:
        """What one of the hosts is given."""
        return {**self.chosen._asdict(), "sources": self.sources}


def newest(manifests: Iterable[Manifest]) -> List[Chosen]:
    """The newest complete checkpoint of each series that these manifests describe together, the newest one first.

    A name without a step (``best.pt``) is a series of its own: what a script saves in several files, it needs again.
    Where each rank saves a file of its own, all those of its save come with it.
    """
    entries: Dict[str, List[Manifest]] = {}
    for one in manifests:
        known = entries.setdefault(one["entry"], [])
        if one not in known:
            known.append(one)
    complete = in_order(one for one in map(best, entries.values()) if one is not None)
    partly = partial(complete)
    complete = [one for one in complete if one.entry not in partly]
    wanted = latest([one.entry for one in complete])
    return [one for one in reversed(complete) if one.entry in wanted]


def partial(complete: Sequence[Union[Chosen, Saved]]) -> Set[str]:
    """The entries of a newest save that lacks a file of a rank or shard which the save before it has: the host that
    writes it was lost, or its writer killed. ``complete``: oldest first.

    Only the newest one is doubted. If the training has fewer ranks than before, or saves other files, that costs the
    first such save at most, and only until there is a second one.
    """
    families: Dict[str, Dict[str, List[Union[Chosen, Saved]]]] = {}
    for one in complete:
        save = save_of(one.entry)
        saves = families.setdefault(_family(one.entry), {})
        saves[save] = [*saves.pop(save, []), one]  # the last one is the newest
    found: Set[str] = set()
    for saves in families.values():
        before, last = [[], *saves.values()][-2:]
        if not _members(before) <= _members(last):
            found.update(one.entry for one in last)
    return found


def _members(save: Iterable[Union[Chosen, Saved]]) -> Set[Tuple[Optional[str], Optional[str]]]:
    """The files of single ranks or shards in it, by names that every save has."""
    names = {(series_of(one.entry), member_of(path)) for one in save for path in one.files}
    return {(series, member) for series, member in names if member is not None or "*" in save_of(series or "")}


def latest(entries: Sequence[str]) -> Set[str]:
    """The last one of each series, with the others of the same save. ``entries``: oldest first."""
    last = {_family(entry): save_of(entry) for entry in entries}
    return {entry for entry in entries if save_of(entry) == last[_family(entry)]}


def _family(entry: str) -> str:
    """What the saves of all ranks of a training have in common."""
    save = save_of(entry)
    return series_of(save) or save


def all_have(summaries: Mapping[str, Sequence[Row]]) -> bool:
    """Whether there can be nothing to restore: every host has all newest ones itself, or there are none at all.

    Two versions of one entry may be parts of it, which nobody has put together yet."""
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


def restoring(held: Sequence[Kept], hosts: Sequence[str]) -> List[Restore]:
    """What has to be done for all of ``hosts`` to have the newest complete checkpoints in their own folders."""
    found = []
    for chosen in newest(one.manifest for one in held):
        wanted = content(chosen.files)
        parts = [one for one in held if one.manifest["entry"] == chosen.entry]
        own = {one.host: content(one.manifest["files"]) for one in parts if one.manifest["host"] == one.host}
        lacking = [host for host in hosts if own.get(host) != wanted]
        if lacking:
            found.append(Restore(chosen, lacking, {path: _where(path, file, parts) for path, file in wanted.items()}))
    return found


def _where(path: str, sha256: str, parts: Sequence[Kept]) -> List[Tuple[str, str]]:
    """Who has that file, as (host, writer)."""
    having = [one for one in parts if content(one.manifest["files"]).get(path) == sha256]
    return sorted({(one.host, one.manifest["host"]) for one in having})
