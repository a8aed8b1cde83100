"""What makes a checkpoint complete. Pure, and the only place that says so: the list that a user sees, what a restart
resumes from, what ``fetch --checkpoints`` brings and what ``keep`` may remove all ask here.

The hosts' manifests of one name, taken together, are a checkpoint:

- a file is complete once it has a manifest;
- so is a folder without shards: it has the files of all hosts, of two with one name the newer one;
- a folder with torch.distributed.checkpoint's shards is complete when everything that its ``.metadata`` refers to is
  there. A name may be used again for the next save, and its files then differ only in their content: so a shard counts
  only if it was written in the time of that very save, by the clock of its own host.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

METADATA = ".metadata"  # the index of torch.distributed.checkpoint, which makes its folder whole
SHARD = ".distcp"
SAME_SAVE_S = 3600.0  # parts that were written further apart are of two saves under one name
APART_S = 10.0  # how far the clocks of two hosts may be apart

Manifest = Dict[str, Any]
File = Dict[str, Any]


class Chosen(NamedTuple):
    """A complete checkpoint; ``files`` are those of all hosts."""

    entry: str
    time: str
    step: Optional[int]
    files: Dict[str, File]
    references: Optional[Dict[str, int]] = None
    previous: Optional[int] = None  # shards from before are none of its (ns)


def best(parts: Sequence[Manifest]) -> Optional[Chosen]:
    """The newest complete checkpoint among the manifests of one name: it may have been used again. None: there is
    none."""
    parts = sorted(parts, key=age)
    found = [_single(one) for one in parts if "" in one["files"]]
    folders = [one for one in parts if "" not in one["files"]]
    found += [_of_index(one, folders) for one in folders if one["references"] is not None and not _lacks(one, folders)]
    plain = [one for one in folders if one["references"] is None]
    if plain and not any(path.endswith(SHARD) for one in folders for path in one["files"]):
        found.append(_plain(plain))
    return max(found, key=rank, default=None)


def lacking(parts: Sequence[Manifest]) -> List[str]:
    """What is missing, in words, where ``best`` finds nothing."""
    indexes = [one for one in parts if one["references"] is not None]
    if indexes:
        return _lacks(max(indexes, key=age), [one for one in parts if "" not in one["files"]])
    return sorted({index_of(path) for one in parts for path in one["files"] if path.endswith(SHARD)})


def rank(chosen: Chosen) -> Tuple[float, str, List[Tuple[str, str]]]:
    """The greatest is the newest; the rest makes every host choose the same one of two."""
    return moment(chosen.time), chosen.entry, sorted(content(chosen.files).items())


def content(files: Dict[str, File]) -> Dict[str, str]:
    """What makes two of them the same: path -> SHA-256."""
    return {path: file["sha256"] for path, file in files.items()}


def moment(time: str) -> float:
    """A time in ISO 8601 with its zone, in seconds."""
    return datetime.fromisoformat(time).timestamp()


def age(manifest: Manifest) -> Tuple[float, str, str]:
    """By this the newest is found; all hosts find the same one where two are of one moment."""
    return moment(manifest["time"]), str(manifest["host"]), str(manifest["version"])


def indexed(manifest: Manifest) -> int:
    """When the newest index in it was written (ns); 0: it has none."""
    return max((file["mtime_ns"] for path, file in manifest["files"].items() if path == index_of(path)), default=0)


def index_of(path: str) -> str:
    """The path of the index that the folder of a shard needs."""
    return path[: path.rfind("/") + 1] + METADATA


def _single(manifest: Manifest) -> Chosen:
    return Chosen(manifest["entry"], manifest["time"], manifest["step"], manifest["files"])


def _plain(parts: List[Manifest]) -> Chosen:
    """``parts``: oldest first. What one host wrote long before is of an earlier save."""
    last = parts[-1]
    begun = moment(last["time"]) - SAME_SAVE_S
    files: Dict[str, File] = {}
    for one in parts:
        if moment(one["time"]) >= begun:
            files.update(one["files"])
    return Chosen(last["entry"], last["time"], last["step"], files)


def _of_index(index: Manifest, parts: List[Manifest]) -> Chosen:
    references: Dict[str, int] = index["references"]
    united = _united(index, parts)
    mine = {path: file for path, file in united.items() if path in references or not path.endswith(SHARD)}
    return Chosen(index["entry"], index["time"], index["step"], mine, references, index.get("previous"))


def _united(index: Manifest, parts: List[Manifest]) -> Dict[str, File]:
    """The files of the save that ``index`` has the ``.metadata`` of, by path; of two the one that was written last
    before it."""
    end, begin = indexed(index) / 1e9, _begin(index)
    found: Dict[str, Tuple[Tuple[bool, float, str], File]] = {}
    for one in parts:
        late = 0.0 if one["host"] == index["host"] else APART_S
        for path, file in one["files"].items():
            written = _written(file)
            if begin < written <= end + late:
                how = (written <= end, written, str(file["sha256"]))
                if path not in found or found[path][0] < how:
                    found[path] = (how, file)
    united = {path: file for path, (_, file) in found.items()}
    # What lies beside the index and is no shard belongs to it: a script may write more once the shards are there.
    united.update({path: file for path, file in index["files"].items() if not path.endswith(SHARD)})
    return united


def _lacks(index: Manifest, parts: Sequence[Manifest]) -> List[str]:
    """What the save that ``index`` has the ``.metadata`` of still needs."""
    united = _united(index, list(parts))
    known = {path for one in parts for path in one["files"]}
    begin = _begin(index)
    shards = {path for one in parts for path, file in one["files"].items() if _written(file) > begin}
    missing = {index_of(path) for path in shards if path.endswith(SHARD)} - set(index["files"])
    missing |= {path for path in index["references"] if path not in united and path not in known}
    strange = [path for path in index["references"] if path not in united and path in known]
    cut = [(path, size) for path, size in index["references"].items() if path in united]
    return [
        *sorted(missing),
        *("%s is of another save" % path for path in sorted(strange)),
        *(
            "%s is cut: %d of %d bytes" % (path, united[path]["size"], size)
            for path, size in sorted(cut)
            if united[path]["size"] < size
        ),
    ]


def _begin(index: Manifest) -> float:
    """Since when a shard belongs to this save: after the one before it under the same name, which left its own."""
    end = indexed(index) / 1e9
    if index.get("previous") is None:
        return end - SAME_SAVE_S
    before = float(index["previous"]) / 1e9
    return max(end - SAME_SAVE_S, before + min(APART_S, (end - before) / 2))


def _written(file: File) -> float:
    return float(file["mtime_ns"]) / 1e9
