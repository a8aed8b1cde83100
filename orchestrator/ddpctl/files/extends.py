"""Jobs that extend another job of the file: ``extends: base``, one level deep, and ``args_extra``.

The tree of the file stays as it was written; ``extended`` makes of it the one that the models read, and ``written_at``
leads from there to the place that a person can change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpctl.files.tree import Node, Path
from ddpctl.spec.inventory import suggestion
from ddpctl.spec.values import Fault

_PROGRAMS = ("script", "module")  # a job has one of them: its own stands in for the one it would inherit


def jobs_of(root: Node) -> Mapping[str, Node]:
    """The jobs of the document by name."""
    jobs = root.child("jobs")
    return jobs.value if jobs is not None and isinstance(jobs.value, dict) else {}


def base_of(jobs: Mapping[str, Node], name: str) -> str | None:
    """The job that this one extends, if both are there."""
    node = jobs[name].child("extends") if name in jobs else None
    base = node.value if node is not None else None
    return base if isinstance(base, str) and base in jobs else None


def inherited(root: Node, name: str, key: str) -> Node | None:
    """The value of a job's key: its own, or that of the job that it extends."""
    jobs = jobs_of(root)
    owners = [owner for owner in (name, base_of(jobs, name)) if owner is not None and owner in jobs]
    return next((node for owner in owners if (node := jobs[owner].child(key)) is not None), None)


def extended(root: Node) -> tuple[Node, list[Fault]]:
    """The document with every job complete, or what is wrong with the names that jobs extend."""
    jobs = jobs_of(root)
    faults = [fault for name in jobs for fault in _wrong_base(jobs, name)]
    if faults or not jobs:
        return root, faults
    assert isinstance(root.value, dict)
    complete = replace(root.value["jobs"], value={name: _complete(jobs, name) for name in jobs})
    return replace(root, value={**root.value, "jobs": complete}), []


def _wrong_base(jobs: Mapping[str, Node], name: str) -> list[Fault]:
    node = jobs[name].child("extends")
    if node is None or not isinstance(node.value, str):
        return []  # the model says what is wrong with anything but text
    where, base = ("jobs", name, "extends"), node.value
    if base == name:
        return [Fault(where, "a job cannot extend itself", "name another job, or remove it")]
    if base not in jobs:
        return [Fault(where, f"no job is named {base}", suggestion(base, [one for one in jobs if one != name]))]
    above = jobs[base].child("extends")
    if above is not None and above.value is not None:
        what = f"{base} extends another job itself, and only one level is allowed"
        return [Fault(where, what, f"write extends: {above.value}, and the keys of {base} that are needed here")]
    return []


def _complete(jobs: Mapping[str, Node], name: str) -> Node:
    """The job with what it inherits, and its arguments in one list."""
    base, own = base_of(jobs, name), jobs[name]
    if base is None or not isinstance(own.value, dict) or not isinstance(jobs[base].value, dict):
        return _with_extra(own)
    inherits, keys = _with_extra(jobs[base]), {key: node for key, node in own.value.items() if key != "extends"}
    assert isinstance(inherits.value, dict)
    if any(key in keys and keys[key].value is not None for key in _PROGRAMS):
        inherits = _without(inherits, *_PROGRAMS)
    return _with_extra(_merge(inherits, replace(own, value=keys)))


def _with_extra(job: Node) -> Node:
    """The job with ``args_extra`` at the end of ``args``; as it is where one of them is no list."""
    args, extra = job.child("args"), job.child("args_extra")
    first = args.value if args is not None else []
    if extra is None or not isinstance(extra.value, list) or not isinstance(first, list):
        return job
    without = _without(job, "args_extra")
    assert isinstance(without.value, dict)
    return replace(without, value={**without.value, "args": replace(args or extra, value=[*first, *extra.value])})


def _without(job: Node, *keys: str) -> Node:
    assert isinstance(job.value, dict)
    return replace(job, value={key: node for key, node in job.value.items() if key not in keys})


def _merge(base: Node, own: Node) -> Node:
    """Key by key, mappings in it as well; lists and scalars are replaced."""
    assert isinstance(base.value, dict)
    assert isinstance(own.value, dict)
    merged = dict(base.value)
    for key, node in own.value.items():
        below = merged.get(key)
        both = below is not None and isinstance(below.value, dict) and isinstance(node.value, dict)
        merged[key] = _merge(below, node) if below is not None and both else node
    return replace(own, value=merged)


def written_at(root: Node, path: Sequence[str | int]) -> Path:
    """Where in the file the value stands that the complete document has at ``path``."""
    jobs = jobs_of(root)
    match tuple(path):
        case ("jobs", str() as name, "args", int() as index, *rest):
            for owner, key, length in _argument_lists(jobs, name):
                if index < length:
                    return ("jobs", owner, key, index, *rest)
                index -= length
        case ("jobs", str() as name, _, *_) if (base := base_of(jobs, name)) is not None:
            return max(tuple(path), ("jobs", base, *path[2:]), key=lambda one: _depth(root, one))  # its own, if equal
    return tuple(path)


def _argument_lists(jobs: Mapping[str, Node], name: str) -> list[tuple[str, str, int]]:
    """The lists that a job's arguments come from, in order: whose, which key, how long."""
    base = base_of(jobs, name)
    owner = base if base is not None and jobs[name].child("args") is None else None
    first = _argument_lists(jobs, owner) if owner is not None and owner != name else [_listed(jobs, name, "args")]
    return [*first, _listed(jobs, name, "args_extra")]


def _listed(jobs: Mapping[str, Node], name: str, key: str) -> tuple[str, str, int]:
    node = jobs[name].child(key) if name in jobs else None
    return name, key, len(node.value) if node is not None and isinstance(node.value, list) else 0


def _depth(root: Node, path: Sequence[str | int]) -> int:
    """How much of the path is there."""
    node: Node | None = root
    for depth, part in enumerate(path):
        node = node.child(part) if node is not None else None
        if node is None:
            return depth
    return len(path)
