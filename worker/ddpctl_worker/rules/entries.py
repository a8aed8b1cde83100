"""What in a job's folder for checkpoints is a checkpoint. Pure.

An **entry** is a file or a folder that a job saves as one thing. Its name is its path below the folder for checkpoints:
``snapshot.pt``, ``step_120``, or ``saved_models/epoch_3.pt``, since scripts like to save into a folder of their own. So
a folder is either an entry or a **group** of entries:

- It is an entry with shards of torch.distributed.checkpoint in it, or if it has a number like ``step_120`` has one.
- It is a group if something in it has a number: ``saved_models/epoch_3.pt``, ``fsdp_gpt/step_000050/``.
- Any other folder is an entry: ``final_model/`` with its weights, its tokenizer and its settings belongs together.

Left out everywhere: symbolic links, names that count as temporary, and logs, which never come to rest. A file of text
or settings is part of a folder, but no checkpoint of its own.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, Mapping, NamedTuple, Optional, Tuple, Union

FOLDER = ".ddpctl"  # beside the entries, for what ddpctl knows of them
METADATA = ".metadata"  # the index of torch.distributed.checkpoint, which makes its folder whole
SHARD = ".distcp"

_TEMPORARY = (".tmp", ".part", ".partial")
_BESIDE = (".txt", ".csv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".md", ".html", ".png", ".py", ".lock")
_POINTERS = ("latest", "checkpoint")  # DeepSpeed's and TensorFlow's: the name of the newest one, in a file
_COUNTED = re.compile(r"(step|iter(?:ation)?|checkpoint|ckpt|epoch)s?[-_=.]?(\d+)(?!\d)", re.IGNORECASE)
_ORDER = ("step", "iter", "iteration", "checkpoint", "ckpt", "epoch")  # which of several numbers is the step
_NUMBER = re.compile(r"(?<![A-Za-z0-9.])(\d+)(?![A-Za-z0-9]|\.\d)")  # a word of its own: none of resnet50, fp16, 0.25
_SHARE = re.compile(r"rank|shard|part|rng|-of-|^__\d", re.IGNORECASE)  # numbered by rank, not by step
# Numbers that tell files of one save apart, and those that tell apart what is trained side by side.
_MEMBER = r"(?:rank|shard|part(?:ition)?|worker|gpu)[-_=.]?\d+(?:[-_.]of[-_.]\d+)?|\d+[-_.]of[-_.]\d+"
_APART = r"(?:fold|seed|trial|run|split|stage)[-_=.]?\d+"
_MEMBERS = re.compile(_MEMBER, re.IGNORECASE)
_NUMBERS = re.compile(r"(?P<stays>%s|%s)|\d+(?:\.\d+)?" % (_MEMBER, _APART), re.IGNORECASE)


class Stamp(NamedTuple):
    """What changes with a file's content."""

    size: int
    mtime_ns: int
    inode: int  # 0: it cannot be read


Files = Dict[str, Stamp]  # by path within the entry; "" for an entry that is a file
Tree = Dict[str, Union[Stamp, "Tree"]]


def entries_of(tree: Tree) -> Dict[str, Files]:
    """Return the entries of a folder that has been read, by name."""
    return dict(_entries("", tree))


def hidden(entry: str, found: Mapping[str, Files]) -> bool:
    """Whether an entry that is not in ``found`` may be there all the same, in a folder that cannot be read."""
    parts = entry.split("/")
    above = (found.get("/".join(parts[:count]), {}) for count in range(1, len(parts)))
    return any(not stamp.inode for files in above for stamp in files.values())


def step_of(entry: str) -> Optional[int]:
    """The number by which people know it: 120 of ``step_120``, ``ckpt-120.pt``, ``epoch=3-step=120.ckpt``."""
    name = entry.rpartition("/")[2]
    counted = {word.lower(): int(number) for word, number in _COUNTED.findall(name)}
    if counted:
        return counted[min(counted, key=_ORDER.index)]
    numbers = [] if _SHARE.search(name) else _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def series_of(entry: str) -> Optional[str]:
    """What the names of a series have in common; None for a name without a step: it stands for itself. Each rank, each
    shard and each fold has a series of its own."""
    if step_of(entry) is None:
        return None
    group, slash, name = entry.rpartition("/")
    return group + slash + _NUMBERS.sub(lambda found: found["stays"] or "#", name)


def save_of(entry: str) -> str:
    """What the names of one save have in common: ``step_100_rank_0.pt`` and ``step_100_rank_1.pt`` belong together."""
    group, slash, name = entry.rpartition("/")
    return group + slash + _MEMBERS.sub("*", name)


def member_of(path: str) -> Optional[str]:
    """The name of a file that belongs to one rank or shard, the same in every save; None: it does not say so."""
    return _NUMBERS.sub(lambda found: found["stays"] or "#", path) if _MEMBERS.search(path) else None


def is_of_torch(path: str) -> bool:
    """Whether a file is a shard of torch.distributed.checkpoint, or the index of shards."""
    return path.rpartition("/")[2] == METADATA or path.endswith(SHARD)


def temporary(name: str) -> bool:
    """Whether what has this name is still being written, or is nobody's business."""
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
    """Whether a file of this name is a checkpoint of its own."""
    return not name.endswith((*_BESIDE, SHARD)) and name not in _POINTERS and name != METADATA


def _is_group(name: str, tree: Tree) -> bool:
    if any(one == METADATA or one.endswith(SHARD) for one in tree):
        return False
    if _COUNTED.search(name):
        return False
    if step_of(name) is not None:
        return any(_COUNTED.search(one) for one in tree)
    return any(step_of(one) is not None for one in tree)


def files_of(tree: Tree, prefix: str = "") -> Iterator[Tuple[str, Stamp]]:
    for name, node in tree.items():
        if isinstance(node, Stamp):
            yield prefix + name, node
        else:
            yield from files_of(node, "%s%s/" % (prefix, name))


def is_log(name: str) -> bool:
    return name.endswith(".log") or "tfevents" in name
