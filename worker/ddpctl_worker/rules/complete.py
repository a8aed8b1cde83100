"""Decides when a checkpoint is complete. Pure, and the only place with this rule: the list for the user, a restart,
``fetch --checkpoints`` and ``keep`` all call it.

Manifests of the same name are united only if the same attempt wrote them, and only files of the same save count:

- A file is a checkpoint by itself.
- A folder without shards needs the files of every host that wrote to it in that attempt. The newer save is incomplete
  until every such host has saved again. The first save of an attempt needs the files of all ranks that the folder had
  before.
- A folder with shards of torch.distributed.checkpoint needs every file that its ``.metadata`` refers to, from the same
  save as the ``.metadata``.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, TypedDict, Union

from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.entries import METADATA, SHARD, is_of_torch, member_of
from ddpctl_worker.rules.order import When, oldest_first, when_of
from ddpctl_worker.rules.saves import EARLIER, find_newest_save, is_member


class SavedFile(TypedDict):
    """A file of an entry; see checkpoint/manifest.py."""

    size: int
    sha256: str
    mtime_ns: int
    save: Optional[int]


class Manifest(TypedDict):
    """A host's part of an entry; see checkpoint/manifest.py. At run time it is a plain ``dict``."""

    schema: int
    entry: str
    host: str
    step: Optional[int]
    time: str
    size: int
    files: Dict[str, SavedFile]
    references: Optional[Dict[str, int]]
    version: str
    serial: int
    run: Optional[str]
    attempt: int
    clock: str


UNKNOWN_SAVE = "it is saved too often under one name to tell its saves apart"


class Chosen(NamedTuple):
    """A complete checkpoint. ``files`` are the files of all hosts. ``clock`` is the host that measured ``time``."""

    entry: str
    time: str
    clock: str
    step: Optional[int]
    serial: int
    run: Optional[str]
    attempt: int
    files: Dict[str, SavedFile]
    references: Optional[Dict[str, int]] = None


def choose_newest_complete(parts: Sequence[Manifest]) -> Optional[Chosen]:
    """Return the newest complete checkpoint among the manifests of a name, or ``None``. A name may have been used for
    several saves.
    """
    complete = [candidate for candidate in _candidates(parts) if isinstance(candidate, Chosen)]
    return in_order(complete)[-1] if complete else None


def is_whole(part: Manifest) -> bool:
    """Return whether the files of one host are a complete checkpoint without the other hosts.

    False if files of an earlier save are among them: a script that reads the whole folder would mix two saves.
    """
    chosen = choose_newest_complete([part])
    return chosen is not None and content(chosen.files) == content(part["files"])


def list_missing(parts: Sequence[Manifest]) -> List[str]:
    """Return what the newest save needs to be complete, in words. To be called where ``best`` finds nothing."""
    last = max(map(attempt_of, parts))
    newest = [part for part in parts if attempt_of(part) == last]
    for candidate in _candidates(newest, parts):
        if not isinstance(candidate, Chosen):
            return candidate
    return []


def when(chosen: Chosen) -> When:
    return when_of(chosen._asdict())


def in_order(found: Iterable[Chosen]) -> List[Chosen]:
    """Return the checkpoints oldest first, in the same order on every host."""
    return oldest_first(found, when, lambda chosen: sorted(content(chosen.files).items()))


def content(files: Dict[str, SavedFile]) -> Dict[str, str]:
    """Return the content by which two checkpoints are compared: path -> SHA-256."""
    return {path: file["sha256"] for path, file in files.items()}


def sort_by_time(parts: Sequence[Manifest]) -> List[Manifest]:
    """Return the manifests oldest first, in the same order on every host."""
    return oldest_first(parts, when_of, lambda part: (str(part["host"]), str(part["version"]), repr(part["files"])))


def index_of(path: str) -> str:
    """Return the path of the index that belongs to a shard."""
    return path[: path.rfind("/") + 1] + METADATA


def _candidates(parts: Sequence[Manifest], every: Sequence[Manifest] = ()) -> List[Union[Chosen, List[str]]]:
    """Return the complete saves among manifests of the same name; for each incomplete save, its missing files.

    The newest save of an attempt comes first. ``every``: the manifests of all attempts, if ``parts`` has only some.
    """
    candidates: List[Union[Chosen, List[str]]] = []
    for attempt in {attempt_of(part) for part in parts}:
        mine = sort_by_time([part for part in parts if attempt_of(part) == attempt])
        candidates += [_chosen(part, part["files"]) for part in mine if "" in part["files"]]
        folders = [part for part in mine if "" not in part["files"]]
        indexes = [
            part for part in reversed(folders) if part["references"] is not None and _index_save(part) != EARLIER
        ]
        shards = {path for part in folders for path in _written(part) if path.endswith(SHARD)}
        if indexes:
            candidates += [_sharded(part, folders) for part in indexes]
        elif shards:
            candidates.append(sorted({index_of(path) for path in shards}))
        elif folders:
            earlier = [part for part in (every or parts) if attempt_of(part) < attempt]
            candidates += [_plain(save, folders, earlier) for save in _saves(folders)] or [
                ["no file is of that attempt"]
            ]
    return candidates


def _written(manifest: Manifest) -> List[str]:
    """Return the files in the manifest that its attempt has written."""
    return [path for path, file in manifest["files"].items() if file["save"] != EARLIER]


def _chosen(of: Manifest, files: Dict[str, SavedFile], references: Optional[Dict[str, int]] = None) -> Chosen:
    place = of["entry"], of["time"], of["clock"], of["step"], of["serial"], of["run"], of["attempt"]
    return Chosen(*place, files, references)


def _saves(folders: Sequence[Manifest]) -> List[Optional[int]]:
    """Return the saves that at least one host has, the newest first. A save of unknown number comes before all
    others.
    """
    saves = {_save(folder) for folder in folders} - {EARLIER}
    return sorted(saves, key=lambda save: (save is None, save or 0), reverse=True)


def _save(manifest: Manifest) -> Optional[int]:
    return find_newest_save({path: file["save"] for path, file in manifest["files"].items()})


def _plain(save: Optional[int], folders: Sequence[Manifest], earlier: Sequence[Manifest]) -> Union[Chosen, List[str]]:
    """Judge a save of a folder without shards.

    ``folders``: the manifests of one attempt, oldest first. ``earlier``: the manifests of the attempts before.
    """
    hosts = sorted({own["host"] for own in folders})
    having = {own["host"]: own for own in folders if _save(own) == save}
    if save is None and (len(hosts) > 1 or sum(map(_is_counted, folders[-1]["files"])) > 1):
        return [UNKNOWN_SAVE]
    behind = [host for host in hosts if host not in having]
    if behind:
        return ["%s has not saved it again" % ", ".join(behind)]
    files = _files_of(save, [having[host] for host in reversed(hosts)])
    if save in (None, 1):
        places = {_place(path) for own in [*earlier, *folders] for path in own["files"] if _is_counted(path)}
        lost = places - {_place(path) for path in files}
        if lost:
            return sorted(lost)
    return _chosen(having[hosts[0]], files)


def _files_of(save: Optional[int], parts: Sequence[Manifest]) -> Dict[str, SavedFile]:
    """Return the files of a save, and the files that all saves share. If two files have the same name, the last file
    counts.
    """
    files = [item for part in parts for item in part["files"].items()]
    shared = {path: file for path, file in files if not _is_counted(path)}
    return {**shared, **{path: file for path, file in files if file["save"] == save}}


def _is_counted(path: str) -> bool:
    """Return whether each save writes its own copy of the file: a file of a rank, a shard, or an index."""
    return is_member(path) or is_of_torch(path)


def _place(path: str) -> str:
    """Return a name that is the same in every save for the file of a rank."""
    return member_of(path) or path


def _index_save(index: Manifest) -> Optional[int]:
    saves = {path: file["save"] for path, file in index["files"].items() if path == index_of(path)}
    return find_newest_save(saves)


def _sharded(index: Manifest, parts: Sequence[Manifest]) -> Union[Chosen, List[str]]:
    """Judge the save whose ``.metadata`` is in ``index``. ``parts``: manifests of the same attempt, oldest first."""
    references = index["references"] or {}
    save = _index_save(index)
    if save is None:
        return [UNKNOWN_SAVE]
    beside = {path: file for path, file in index["files"].items() if not _is_counted(path)}
    written = [{path: file for path, file in part["files"].items() if file["save"] == save} for part in [*parts, index]]
    united = dict(beside)
    for files in written:  # the host that has the index comes last, so its files win
        united.update(files)
    lost = _lacks(references, united, {path for part in parts for path in part["files"]})
    mine = {path: file for path, file in united.items() if path in references or not path.endswith(SHARD)}
    return lost or _chosen(index, mine, references)


def _lacks(references: Dict[str, int], united: Dict[str, SavedFile], known: Set[str]) -> List[str]:
    """Return what a save with these references still needs. ``known``: every file that the attempt's manifests name."""
    missing = {index_of(path) for path in united if path.endswith(SHARD)} - set(united)
    missing |= {path for path in references if path not in known}
    foreign = [path for path in references if path not in united and path in known]
    cut = [(path, size) for path, size in references.items() if path in united and united[path]["size"] < size]
    return [
        *sorted(missing),
        *("%s is of another save" % path for path in sorted(foreign)),
        *("%s is cut: %d of %d bytes" % (path, united[path]["size"], size) for path, size in sorted(cut)),
    ]
