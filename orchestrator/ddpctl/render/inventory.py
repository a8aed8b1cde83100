"""A draft as the text of an inventory file, with short comments for its readers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddpctl.spec.draft import Draft, JobDraft
from ddpctl.spec.host import HostEntry
from ddpctl.spec.inventory import Environment
from ddpctl.spec.ranges import RangeFault, expand, fold_names, split
from ddpctl.spec.values import plural

COLUMN = 34  # the column where comments begin
# Text that every YAML reader reads as text.
_PLAIN = re.compile(r"(?:~?/|\./)?[A-Za-z_][A-Za-z0-9_./@+=-]*(?:\[[0-9,-]+\])?")
_WORDS = re.compile(r"(?i:y|yes|n|no|on|off|true|false|null)")
_SHARED = ("user", "port", "identity_file", "jump", "interface", "slots", "python")
_HEAD = (
    "Written by `ddpctl init`. Run the job: ddpctl up. Check the hosts again: ddpctl preflight.",
    "Every other key has a default; `ddpctl schema` describes them all.",
)


def inventory_text(draft: Draft, *, gpus: Mapping[str, int] | None = None, torch: str | None = None) -> str:
    """Return the text of the file. ``gpus`` of the hosts and the ``torch`` of their Python only go into comments."""
    lines = [*(f"# {line}" for line in _HEAD), "", f"cluster: {scalar(draft.cluster)}"]
    lines += _commented(f"project: {scalar(draft.project)}", "keeps its jobs apart from those of others", "")
    shared = _common(draft.hosts)
    if shared:
        lines += ["", "defaults:", *_keys(shared, "  ", {"python": f"has torch {torch}"} if torch else {})]
    lines += ["", "hosts:"]
    counted = draft.job is not None and draft.job.nproc is not None
    for hosts in _alike(draft.hosts, shared):
        lines += _entry(hosts, shared, gpus or {}, counted=counted)
    if draft.environment != Environment():
        lines += ["", "environment:", *_environment(draft.environment)]
    if draft.job is not None:
        lines += ["", "jobs:", *_job(draft.job)]
    else:
        lines += ["", *_commented("# jobs:", "no script was chosen: ddpctl up -- SCRIPT ARGS", "")]
    return "\n".join(lines) + "\n"


def scalar(value: Any) -> str:
    """Return a value in one line, quoted if a YAML reader could misread it."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value)
        return value if plain else _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return json.dumps(value)


def _flow(value: Any) -> str:
    """Return a value for use inside brackets: a plain word must not contain a bracket."""
    text = scalar(value)
    return _quoted(value) if isinstance(value, str) and "[" in text else text


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")  # the only control character that JSON does not escape


def _common(hosts: Sequence[HostEntry]) -> dict[str, Any]:
    """Return the keys that have the same value on all hosts."""
    found = {}
    for key in _SHARED:
        values = [getattr(host, key) for host in hosts]
        if values and values[0] is not None and all(value == values[0] for value in values):
            found[key] = values[0]
    return found


def _own(host: HostEntry, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that belong to this host alone, without its name."""
    return {key: value for key, value in host if value not in (None, {}) and key not in ("name", *shared)}


def _alike(hosts: Iterable[HostEntry], shared: Mapping[str, Any]) -> Iterator[list[HostEntry]]:
    """Yield consecutive hosts without keys of their own as a group, and every other host alone."""
    group: list[HostEntry] = []
    for host in hosts:
        if not _own(host, shared):
            group.append(host)
            continue
        if group:
            yield group
        yield [host]
        group = []
    if group:
        yield group


def _entry(
    hosts: Sequence[HostEntry], shared: Mapping[str, Any], gpus: Mapping[str, int], *, counted: bool
) -> Iterator[str]:
    """Yield the entry of these hosts. ``counted``: the job sets the number of processes of a host."""
    own = _own(hosts[0], shared)
    counted = counted or hosts[0].slots is not None
    if not own:
        for name in _ranges([host.name for host in hosts]):
            yield from _commented(f"- {scalar(name)}", _gpus(expand(name), gpus, counted=counted), "  ")
        return
    yield from _commented(f"- name: {scalar(hosts[0].name)}", _gpus([hosts[0].name], gpus, counted=counted), "  ")
    yield from _keys(own, "    ", {})


def _ranges(names: Sequence[str]) -> list[str]:
    """Return the names as ranges if these keep the order: the first host is the master."""
    ranges = split(fold_names(names))
    try:
        same = [name for part in ranges for name in expand(part)] == list(names)
    except RangeFault:
        same = False
    return ranges if same else list(names)


def _gpus(names: Iterable[str], gpus: Mapping[str, int], *, counted: bool) -> str:
    """Return a comment on the GPUs if all hosts have the same number.

    Without GPUs, and if nothing is ``counted``, it also names the consequence.
    """
    counts = [gpus.get(name) for name in names]
    first = counts[0]
    if first is None or any(count != first for count in counts):
        return ""
    each = " each" if len(counts) > 1 else ""
    if first:
        return f"{plural(first, 'GPU')}{each}"
    return f"no GPU{each and 's'}" + ("" if counted else f": one process{each}")


def _keys(values: Mapping[str, Any], indent: str, comments: Mapping[str, str]) -> Iterator[str]:
    for key, value in values.items():
        yield from _commented(f"{key}: {scalar(value)}", comments.get(key, ""), indent)


def _commented(text: str, comment: str, indent: str) -> Iterator[str]:
    line = f"{indent}{text}"
    yield f"{line:<{COLUMN - 1}} # {comment}" if comment else line


def _environment(environment: Environment) -> Iterator[str]:
    yield from _commented(f"mode: {environment.mode}", "ddpctl builds it; existing: use what the hosts have", "  ")
    if environment.packages:
        yield from _commented(f"packages: {scalar(environment.packages)}", "what the script imports", "  ")
    if environment.requirements:
        yield from _commented(f"requirements: {scalar(environment.requirements)}", "", "  ")


def _job(job: JobDraft) -> Iterator[str]:
    yield f"  {scalar(job.name)}:"
    if job.script is not None:
        yield from _commented(f"script: {scalar(job.script)}", "", "    ")
    else:
        yield from _commented(f"module: {scalar(job.module)}", "run as python -m", "    ")
    yield from _commented(f"args: {scalar(job.args)}", "what follows the script on its command line", "    ")
    if job.code is not None:
        yield from _commented(f"code: {scalar(job.code)}", "the folder that is sent to the hosts", "    ")
    if job.nodes is not None:
        yield from _commented(f"nodes: {job.nodes}", "of the hosts above; default: all", "    ")
    if job.nproc is not None:
        yield from _commented(f"nproc_per_node: {job.nproc}", "default: a process for each GPU", "    ")
    if job.master is not None:
        yield from _commented(f"master: {scalar(job.master)}", "gets node rank 0; default: the first host", "    ")
    if job.port is not None:
        yield from _commented(f"master_port: {job.port}", "default: a free port", "    ")
    if job.elastic is not None:
        limits = job.elastic.model_dump(exclude_none=True)
        yield from _commented(f"elastic: {scalar(limits)}", "", "    ")
    if job.env:
        yield from _commented(f"env: {scalar(job.env)}", "", "    ")
