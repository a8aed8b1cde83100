"""What makes a checkpoint complete. Pure, and the only place that says so: the list that a user sees, what a restart
resumes from, what ``fetch --checkpoints`` brings and what ``keep`` may remove all ask here.

The manifests of one name are united only where one attempt wrote them, and only files of one save of it:

- a file is a checkpoint by itself;
- a folder without shards has the files of every host that wrote to it in that attempt. A host that has not saved again
  makes the newer save incomplete. The first save of an attempt must have the files of all ranks that the folder had;
- a folder with torch.distributed.checkpoint's shards needs everything that its ``.metadata`` refers to, from the save
  of that very ``.metadata``.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Union

from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.entries import METADATA, SHARD, is_of_torch, member_of
from ddpctl_worker.rules.order import When, oldest_first, when_of
from ddpctl_worker.rules.saves import EARLIER, is_member, newest_save

Manifest = Dict[str, Any]
File = Dict[str, Any]
UNKNOWN_SAVE = "it is saved too often under one name to tell its saves apart"


class Chosen(NamedTuple):
    """A complete checkpoint; ``files`` are those of all hosts. ``clock``: the host by whose clock ``time`` is."""

    entry: str
    time: str
    clock: str
    step: Optional[int]
    serial: int
    run: Optional[str]
    attempt: int
    files: Dict[str, File]
    references: Optional[Dict[str, int]] = None


def best(parts: Sequence[Manifest]) -> Optional[Chosen]:
    """The newest complete checkpoint among the manifests of one name: it may have been used again. None: there is
    none."""
    found = [one for one in _candidates(parts) if isinstance(one, Chosen)]
    return in_order(found)[-1] if found else None


def lacking(parts: Sequence[Manifest]) -> List[str]:
    """What the newest save needs to be complete, in words, where ``best`` finds nothing."""
    attempts = [attempt_of(one) for one in parts]
    newest = [one for one in parts if attempt_of(one) == max(attempts)]
    for one in _candidates(newest, parts):
        if not isinstance(one, Chosen):
            return one
    return []


def when(chosen: Chosen) -> When:
    return when_of(chosen._asdict())


def in_order(found: Iterable[Chosen]) -> List[Chosen]:
    """Oldest first, on every host alike."""
    return oldest_first(found, when, lambda one: sorted(content(one.files).items()))


def content(files: Dict[str, File]) -> Dict[str, str]:
    """What makes two of them the same: path -> SHA-256."""
    return {path: file["sha256"] for path, file in files.items()}


def newest_last(parts: Sequence[Manifest]) -> List[Manifest]:
    """Manifests, oldest first, on every host alike."""
    return oldest_first(parts, when_of, lambda one: (str(one["host"]), str(one["version"]), repr(one["files"])))


def index_of(path: str) -> str:
    """The path of the index that the folder of a shard needs."""
    return path[: path.rfind("/") + 1] + METADATA


def _candidates(parts: Sequence[Manifest], every: Sequence[Manifest] = ()) -> List[Union[Chosen, List[str]]]:
    """The complete saves among manifests of one name, and for each other save what it lacks. Of an attempt the newest
    one comes first. ``every``: those of all attempts, where ``parts`` are not."""
    found: List[Union[Chosen, List[str]]] = []
    for attempt in {attempt_of(one) for one in parts}:
        mine = newest_last([one for one in parts if attempt_of(one) == attempt])
        found += [_chosen(one, one["files"]) for one in mine if "" in one["files"]]
        folders = [one for one in mine if "" not in one["files"]]
        indexes = [one for one in reversed(folders) if one["references"] is not None and _index_save(one) != EARLIER]
        shards = {path for one in folders for path in _written(one) if path.endswith(SHARD)}
        if indexes:
            found += [_sharded(one, folders) for one in indexes]
        elif shards:
            found.append(sorted({index_of(path) for path in shards}))
        elif folders:
            earlier = [one for one in (every or parts) if attempt_of(one) < attempt]
            found += [_plain(save, folders, earlier) for save in _saves(folders)] or [["no file is of that attempt"]]
    return found


def _written(manifest: Manifest) -> List[str]:
    """The files in it that its attempt has written."""
    return [path for path, file in manifest["files"].items() if file["save"] != EARLIER]


def _chosen(of: Manifest, files: Dict[str, File], references: Optional[Dict[str, int]] = None) -> Chosen:
    place = of["entry"], of["time"], of["clock"], of["step"], of["serial"], of["run"], of["attempt"]
    return Chosen(*place, files, references)


def _saves(folders: Sequence[Manifest]) -> List[Optional[int]]:
    """The saves that some host has, the newest first; one that is not known before all others."""
    found = {_save(one) for one in folders} - {EARLIER}
    return sorted(found, key=lambda save: (save is None, save or 0), reverse=True)


def _save(manifest: Manifest) -> Optional[int]:
    return newest_save({path: file["save"] for path, file in manifest["files"].items()})


def _plain(save: Optional[int], folders: Sequence[Manifest], earlier: Sequence[Manifest]) -> Union[Chosen, List[str]]:
    """A folder without shards. ``folders``: of one attempt, oldest first. ``earlier``: those of the attempts before."""
    hosts = sorted({one["host"] for one in folders})
    having = {one["host"]: one for one in folders if _save(one) == save}
    if save is None and (len(hosts) > 1 or sum(map(_is_counted, folders[-1]["files"])) > 1):
        return [UNKNOWN_SAVE]
    behind = [host for host in hosts if host not in having]
    if behind:
        return ["%s has not saved it again" % ", ".join(behind)]
    files = _files_of(save, [having[host] for host in reversed(hosts)])
    if save in (None, 1):
        known = {_place(path) for one in [*earlier, *folders] for path in one["files"] if _is_counted(path)}
        lost = known - {_place(path) for path in files}
        if lost:
            return sorted(lost)
    return _chosen(having[hosts[0]], files)


def _files_of(save: Optional[int], parts: Sequence[Manifest]) -> Dict[str, File]:
    """The files of a save, and those beside them that every save shares; of two with one name the last one."""
    files = [item for one in parts for item in one["files"].items()]
    shared = {path: file for path, file in files if not _is_counted(path)}
    return {**shared, **{path: file for path, file in files if file["save"] == save}}


def _is_counted(path: str) -> bool:
    """Whether each save has a file of that kind of its own: one of a rank, a shard, or an index."""
    return is_member(path) or is_of_torch(path)


def _place(path: str) -> str:
    """The same for a file of the same rank in every save."""
    return member_of(path) or path


def _index_save(index: Manifest) -> Optional[int]:
    """The save of the newest ``.metadata`` in it."""
    saves = {path: file["save"] for path, file in index["files"].items() if path == index_of(path)}
    return newest_save(saves)


def _sharded(index: Manifest, parts: Sequence[Manifest]) -> Union[Chosen, List[str]]:
    """The save that ``index`` has the ``.metadata`` of. ``parts``: of the same attempt, oldest first."""
    references: Dict[str, int] = index["references"]
    save = _index_save(index)
    if save is None:
        return [UNKNOWN_SAVE]
    beside = {path: file for path, file in index["files"].items() if not _is_counted(path)}
    written = [{path: file for path, file in one["files"].items() if file["save"] == save} for one in [*parts, index]]
    united = dict(beside)
    for files in written:  # the host that has the index comes last: its files count
        united.update(files)
    lost = _lacks(references, united, {path for one in parts for path in one["files"]})
    mine = {path: file for path, file in united.items() if path in references or not path.endswith(SHARD)}
    return lost or _chosen(index, mine, references)


def _lacks(references: Dict[str, int], united: Dict[str, File], known: Set[str]) -> List[str]:
    """What a save with these references still needs. ``known``: every file that the attempt's manifests name."""
    missing = {index_of(path) for path in united if path.endswith(SHARD)} - set(united)
    missing |= {path for path in references if path not in known}
    strange = [path for path in references if path not in united and path in known]
    cut = [(path, size) for path, size in references.items() if path in united and united[path]["size"] < size]
    return [
        *sorted(missing),
        *("%s is of another save" % path for path in sorted(strange)),
        *("%s is cut: %d of %d bytes" % (path, united[path]["size"], size) for path, size in sorted(cut)),
    ]
