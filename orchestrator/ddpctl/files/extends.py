"""Jobs that extend another job of the file: ``extends: base``, one level deep, and ``args_extra``.

The tree of the file stays unchanged. ``extended`` derives the tree that the models read, and ``written_at`` leads from
there to the place in the file that a person can change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpctl.files.tree import Node, Path
from ddpctl.spec.inventory import suggestion
from ddpctl.spec.values import Fault

_PROGRAMS = ("script", "module")  # a job has either key: its own replaces the inherited key


def jobs_of(root: Node) -> Mapping[str, Node]:
    """Return the jobs of the document by name."""
    jobs = root.child("jobs")
    return jobs.value if jobs is not None and isinstance(jobs.value, dict) else {}


def base_of(jobs: Mapping[str, Node], name: str) -> str | None:
    """Return the job that this job extends, if both exist."""
    node = jobs[name].child("extends") if name in jobs else None
    base = node.value if node is not None else None
    return base if isinstance(base, str) and base in jobs else None


def merge_job(root: Node, name: str, key: str) -> Node | None:
    """Return the value of a job's key: its own, or that of the job that it extends."""
    jobs = jobs_of(root)
    owners = [owner for owner in (name, base_of(jobs, name)) if owner is not None and owner in jobs]
    return next((node for owner in owners if (node := jobs[owner].child(key)) is not None), None)


def resolve_extends(root: Node) -> tuple[Node, list[Fault]]:
    """Return the document with every job complete, and the faults in the names that jobs extend."""
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
        return []  # the model reports any value that is not text
    where, base = ("jobs", name, "extends"), node.value
    if base == name:
        return [Fault(where, "a job cannot extend itself", "name another job, or remove it")]
    if base not in jobs:
        return [Fault(where, f"no job is named {base}", suggestion(base, [other for other in jobs if other != name]))]
    above = jobs[base].child("extends")
    if above is not None and above.value is not None:
        what = f"{base} extends another job itself, and only one level is allowed"
        return [Fault(where, what, f"write extends: {above.value}, and the keys of {base} that are needed here")]
    return []


def _complete(jobs: Mapping[str, Node], name: str) -> Node:
    """Return the job with its inherited keys, and all its arguments in ``args``."""
    base, own = base_of(jobs, name), jobs[name]
    if base is None or not isinstance(own.value, dict) or not isinstance(jobs[base].value, dict):
        return _with_extra(own)
    inherits, keys = _with_extra(jobs[base]), {key: node for key, node in own.value.items() if key != "extends"}
    assert isinstance(inherits.value, dict)
    if any(key in keys and keys[key].value is not None for key in _PROGRAMS):
        inherits = _without(inherits, *_PROGRAMS)
    return _with_extra(_merge(inherits, replace(own, value=keys)))


def _with_extra(job: Node) -> Node:
    """Return the job with ``args_extra`` appended to ``args``; unchanged if either is not a list."""
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
    """Merge key by key, and mappings within likewise; lists and scalars are replaced."""
    assert isinstance(base.value, dict)
    assert isinstance(own.value, dict)
    merged = dict(base.value)
    for key, node in own.value.items():
        below = merged.get(key)
        both = below is not None and isinstance(below.value, dict) and isinstance(node.value, dict)
        merged[key] = _merge(below, node) if below is not None and both else node
    return replace(own, value=merged)


def written_at(root: Node, path: Sequence[str | int]) -> Path:
    """Return the place in the file of the value that is at ``path`` in the complete document."""
    jobs = jobs_of(root)
    match tuple(path):
        case ("jobs", str() as name, "args", int() as index, *rest):
            for owner, key, length in _argument_lists(jobs, name):
                if index < length:
                    return ("jobs", owner, key, index, *rest)
                index -= length
        case ("jobs", str() as name, _, *_) if (base := base_of(jobs, name)) is not None:
            # the job's own value, if both exist
            return max(tuple(path), ("jobs", base, *path[2:]), key=lambda place: _depth(root, place))
    return tuple(path)


def _argument_lists(jobs: Mapping[str, Node], name: str) -> list[tuple[str, str, int]]:
    """Return the lists that form a job's arguments, in order: (owner, key, length)."""
    base = base_of(jobs, name)
    owner = base if base is not None and jobs[name].child("args") is None else None
    first = _argument_lists(jobs, owner) if owner is not None and owner != name else [_listed(jobs, name, "args")]
    return [*first, _listed(jobs, name, "args_extra")]


def _listed(jobs: Mapping[str, Node], name: str, key: str) -> tuple[str, str, int]:
    node = jobs[name].child(key) if name in jobs else None
    return name, key, len(node.value) if node is not None and isinstance(node.value, list) else 0


def _depth(root: Node, path: Sequence[str | int]) -> int:
    """Return how many parts of the path exist."""
    node: Node | None = root
    for depth, part in enumerate(path):
        node = node.child(part) if node is not None else None
        if node is None:
            return depth
    return len(path)
