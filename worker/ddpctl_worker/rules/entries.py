"""Decides which files in a job's folder for checkpoints are a checkpoint. Pure.

An **entry** is a file or a folder that a job saves as a unit. Its name is its path below the folder for checkpoints:
``snapshot.pt``, ``step_120``, or ``saved_models/epoch_3.pt``, since many scripts save into a folder of their own. So a
folder is either an entry or a **group** of entries:

- A folder is an entry if it has shards of torch.distributed.checkpoint, or a number in its name as in ``step_120``.
- A folder is a group if a name in it has a number: ``saved_models/epoch_3.pt``, ``fsdp_gpt/step_000050/``.
- Any other folder is an entry: ``final_model/`` with its weights, its tokenizer and its settings belongs together.

Symbolic links, temporary names and logs (which keep growing) never count. A file of text or settings is part of a
folder, but no checkpoint of its own.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, Mapping, NamedTuple, Optional, Tuple, Union

FOLDER = ".ddpctl"  # beside the entries: ddpctl's own files about them
METADATA = ".metadata"  # the index of torch.distributed.checkpoint; it is written last
SHARD = ".distcp"

_TEMPORARY = (".tmp", ".part", ".partial")
_BESIDE = (".txt", ".csv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".md", ".html", ".png", ".py", ".lock")
_POINTERS = ("latest", "checkpoint")  # files of DeepSpeed and TensorFlow with the name of the newest checkpoint
_COUNTED = re.compile(r"(step|iter(?:ation)?|checkpoint|ckpt|epoch)s?[-_=.]?(\d+)(?!\d)", re.IGNORECASE)
_ORDER = ("step", "iter", "iteration", "checkpoint", "ckpt", "epoch")  # of several numbers, the first here is the step
_NUMBER = re.compile(r"(?<![A-Za-z0-9.])(\d+)(?![A-Za-z0-9]|\.\d)")  # a word of its own, unlike resnet50, fp16, 0.25
_SHARE = re.compile(r"rank|shard|part|rng|-of-|^__\d", re.IGNORECASE)  # numbered by rank, not by step
# Numbers that distinguish the files of a save, and numbers that distinguish trainings that run side by side.
_MEMBER = r"(?:rank|shard|part(?:ition)?|worker|gpu)[-_=.]?\d+(?:[-_.]of[-_.]\d+)?|\d+[-_.]of[-_.]\d+"
_APART = r"(?:fold|seed|trial|run|split|stage)[-_=.]?\d+"
_MEMBERS = re.compile(_MEMBER, re.IGNORECASE)
_NUMBERS = re.compile(r"(?P<stays>%s|%s)|\d+(?:\.\d+)?" % (_MEMBER, _APART), re.IGNORECASE)


class Stamp(NamedTuple):
    """Values of a file that change with its content."""

    size: int
    mtime_ns: int
    inode: int  # 0: it cannot be read


Files = Dict[str, Stamp]  # by path within the entry; "" for an entry that is a file
Tree = Dict[str, Union[Stamp, "Tree"]]


def entries_of(tree: Tree) -> Dict[str, Files]:
    """Return the entries of a folder, by name. ``tree``: the folder as it was read."""
    return dict(_entries("", tree))


def is_hidden(entry: str, found: Mapping[str, Files]) -> bool:
    """Return whether an entry that is not in ``found`` may still exist, in a folder that cannot be read."""
    parts = entry.split("/")
    above = (found.get("/".join(parts[:count]), {}) for count in range(1, len(parts)))
    return any(not stamp.inode for files in above for stamp in files.values())


def step_of(entry: str) -> Optional[int]:
    """Return the number by which people know the entry: 120 of ``step_120``, ``ckpt-120.pt``,
    ``epoch=3-step=120.ckpt``.
    """
    name = entry.rpartition("/")[2]
    counted = {word.lower(): int(number) for word, number in _COUNTED.findall(name)}
    if counted:
        return counted[min(counted, key=_ORDER.index)]
    numbers = [] if _SHARE.search(name) else _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def series_of(entry: str) -> Optional[str]:
    """Return the part that all names of a series share; ``None`` for a name without a step.

    A name without a step is a series of its own. Each rank, each shard and each fold has its own series.
    """
    if step_of(entry) is None:
        return None
    group, slash, name = entry.rpartition("/")
    return group + slash + _NUMBERS.sub(lambda found: found["stays"] or "#", name)


def save_of(entry: str) -> str:
    """Return the part that all names of a save share: ``step_100_rank_0.pt`` and ``step_100_rank_1.pt`` belong
    together.
    """
    group, slash, name = entry.rpartition("/")
    return group + slash + _MEMBERS.sub("*", name)


def member_of(path: str) -> Optional[str]:
    """Return the name of a file of one rank or shard, the same in every save; ``None`` if the name has no rank or
    shard.
    """
    return _NUMBERS.sub(lambda found: found["stays"] or "#", path) if _MEMBERS.search(path) else None


def is_of_torch(path: str) -> bool:
    """Return whether a file is a shard of torch.distributed.checkpoint, or the index of shards."""
    return path.rpartition("/")[2] == METADATA or path.endswith(SHARD)


def is_temporary(name: str) -> bool:
    """Return whether a file of this name does not count: it is still being written, or hidden, or not printable."""
    return (name.startswith(".") and name != METADATA) or name.endswith(_TEMPORARY) or not name.isprintable()


def _entries(prefix: str, tree: Tree) -> Iterator[Tuple[str, Files]]:
    for name, node in tree.items():
        if isinstance(node, Stamp):
            if (node.size and _stands_alone(name)) or not node.inode:
                yield prefix + name, {"": node}
        elif _is_group(name, node):
            yield from _entries("%s%s/" % (prefix, name), node)
        else:
            files = dict(files_of(node))
            if files:
                yield prefix + name, files


def _stands_alone(name: str) -> bool:
    return not name.endswith((*_BESIDE, SHARD)) and name not in _POINTERS and name != METADATA


def _is_group(name: str, tree: Tree) -> bool:
    if any(child == METADATA or child.endswith(SHARD) for child in tree):
        return False
    if _COUNTED.search(name):
        return False
    if step_of(name) is not None:
        return any(_COUNTED.search(child) for child in tree)
    return any(step_of(child) is not None for child in tree)


def files_of(tree: Tree, prefix: str = "") -> Iterator[Tuple[str, Stamp]]:
    for name, node in tree.items():
        if isinstance(node, Stamp):
            yield prefix + name, node
        else:
            yield from files_of(node, "%s%s/" % (prefix, name))


def is_log(name: str) -> bool:
    return name.endswith(".log") or "tfevents" in name
