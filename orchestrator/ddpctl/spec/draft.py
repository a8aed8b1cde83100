"""The draft of an inventory in `ddpctl init`: hosts, job, and the content of another tool's file. Pure.

files/foreign reads the files of other tools into ``Imported``. render/inventory.py writes a ``Draft`` as text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from ddpctl.spec.host import HostEntry
from ddpctl.spec.inventory import Environment
from ddpctl.spec.job import Elastic
from ddpctl.spec.limits import MOST_HOST_NAMES
from ddpctl.spec.ranges import RangeFault, expand
from ddpctl.spec.values import NAME_RULE, is_name, whole_number

_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_TYPED = re.compile(r"[^\s,\[\]]*(?:\[[^\[\]]*\][^\s,\[\]]*)*")
_PARTS = re.compile(r"(?:(?P<user>[^@]*)@)?(?P<host>\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|[^:]*)(?::(?P<port>.*))?")
_NUMBERS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


class HostFault(ValueError):
    """A text that cannot name a host. The message says why; ``offset``: where in the text; ``hint``: the next step."""

    def __init__(self, message: str, offset: int = 0, hint: str | None = None) -> None:
        super().__init__(message)
        self.offset, self.hint = offset, hint


@dataclass(frozen=True)
class Imported:
    """The content of a file or a command line of another tool; ``None`` or empty: not given.

    ``master``: the address of the main host, if only that host is named. ``nodes``: the number of hosts. ``hostfile``:
    another file, which lists the hosts. ``include`` and ``exclude``: the filters of DeepSpeed for these hosts.
    """

    kind: str
    hosts: tuple[HostEntry, ...] = ()
    master: str | None = None
    port: int | None = None
    nodes: int | None = None
    nproc: int | None = None
    elastic: Elastic | None = None
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    hostfile: str | None = None
    include: str | None = None
    exclude: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobDraft:
    """The job of a draft. ``code`` is ``None`` for the folder of the inventory."""

    name: str
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    code: str | None = None
    nodes: int | None = None
    nproc: int | None = None
    master: str | None = None
    port: int | None = None
    elastic: Elastic | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """An inventory before it is written. Each entry is a single host: there are no ranges."""

    cluster: str
    project: str
    hosts: tuple[HostEntry, ...]
    environment: Environment = field(default_factory=Environment)
    job: JobDraft | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def without(self, names: Sequence[str]) -> Draft:
        """Return the draft without these hosts."""
        left = tuple(host for host in self.hosts if host.name not in names)
        job = self.job
        if job is not None:
            nodes = job.nodes if job.nodes is not None and job.nodes < len(left) else None
            job = replace(job, nodes=nodes, master=None if job.master in names else job.master)
        return replace(self, hosts=left, job=job)

    def with_hosts(self, key: str, values: Mapping[str, Any]) -> Draft:
        """Return the draft with a new value of ``key`` for each host in ``values``."""
        hosts = (
            host.model_copy(update={key: values[host.name]}) if host.name in values else host for host in self.hosts
        )
        return replace(self, hosts=tuple(hosts))


def host_entry(name: str, **keys: Any) -> HostEntry:
    """Return the entry for a host name or address.

    An IPv6 address gets a name made from it. This machine gets ``connection: local``, unless a user or a port is given:
    then the host may be a container.

    Raises:
        HostFault: the name or a key is invalid.
    """
    if name in _HERE and keys.get("user") is None and keys.get("port") is None:
        name, keys = "localhost", {**keys, "connection": "local"}
    elif _is_ipv6(name):
        keys.setdefault("address", name)
        name = re.sub(r"[^0-9A-Za-z]+", "-", name).strip("-")
    if not is_name(name):
        raise HostFault(f"{name!r} is not a valid host name: {NAME_RULE}")
    try:
        return HostEntry(name=name, **{key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        context = first.get("ctx", {})
        raise HostFault(f"{first['loc'][0]} {first['msg']}", hint=context.get("hint")) from None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def typed_hosts(text: str) -> tuple[HostEntry, ...]:
    """Return the hosts that a person types: ``gpu1 gpu[2-4] alice@gpu5 gpu6:2201``, with blanks or commas between them.

    Raises:
        HostFault: a word cannot name a host, or names a host again.
    """
    found: list[HostEntry] = []
    for offset, word in typed_words(text):
        found += _typed(word, offset, found)
    return tuple(found)


def typed_words(text: str) -> list[tuple[int, str]]:
    """Split the text at blanks and at commas outside brackets; return each word with its offset.

    Raises:
        HostFault: the brackets do not match.
    """
    words, position = [], 0
    while position < len(text):
        if text[position].isspace() or text[position] == ",":
            position += 1
            continue
        match = _TYPED.match(text, position)
        end = match.end() if match else position
        if end == position or (end < len(text) and text[end] in "[]"):
            raise HostFault("the brackets do not match", end, "write node[1-3]")
        words.append((position, text[position:end]))
        position = end
    return words


def _typed(word: str, offset: int, before: Sequence[HostEntry]) -> list[HostEntry]:
    parts = _PARTS.fullmatch(word)
    if parts is None or not parts["host"] or parts["user"] == "" or "/" in word:
        raise HostFault(f"{word!r} is not a host", offset, "write host, user@host or host:port")
    text = parts["port"]
    port = None if text is None else whole_number(text, 1, 65535)
    if text is not None and port is None:
        raise HostFault(f"{text!r} is not a port", offset + parts.start("port"), "a port is a number from 1 to 65535")
    host = parts["host"]
    names = (host[1:-1],) if host.startswith("[") and ":" in host else _expanded(host, offset + parts.start("host"))
    known = {entry.name for entry in before}
    found = []
    for name in names:
        try:
            entry = host_entry(name, user=parts["user"], port=port)
        except HostFault as error:
            raise HostFault(str(error), offset, error.hint) from None
        if entry.name in known:
            raise HostFault(f"{entry.name} is there already", offset, "name each host once")
        known.add(entry.name)
        found.append(entry)
    return found


def _expanded(name: str, offset: int) -> tuple[str, ...]:
    try:
        return expand(name)
    except RangeFault as error:
        raise HostFault(str(error), offset) from None


def picked_hosts(answer: str, listed: Sequence[str]) -> tuple[HostEntry, ...]:
    """Return the hosts in an answer: numbers and ranges of the numbered list (``1 3-5``), or host names.

    Raises:
        HostFault: a number is not in the list, or a word cannot name a host.
    """
    chosen: list[str] = []
    for offset, word in typed_words(answer):
        match = _NUMBERS.fullmatch(word) if listed else None
        if match is None:
            chosen.append(word)
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= len(listed):
            raise HostFault(f"{word} is not in the list", offset, f"numbers from 1 to {len(listed)}")
        chosen += listed[first - 1 : last]
    return typed_hosts(" ".join(dict.fromkeys(chosen)))


def merge_imported(file: Imported, line: Imported) -> Imported:
    """Merge a file and a command line; the values of the command line win."""
    of_file = {name: value for name, value in vars(file).items() if value}
    of_line = {name: value for name, value in vars(line).items() if value}
    kind = f"{line.kind} line" if line.kind else file.kind
    kind = file.kind if file.hosts else kind
    return Imported(**{**of_file, **of_line, "kind": kind, "notes": file.notes + line.notes})


def with_master(source: Imported, typed: Sequence[HostEntry]) -> tuple[HostEntry, ...]:
    """Return the hosts, with the master as first host if it is not listed and a host is missing.

    If no host is missing, the master address is a second address of a listed host, for example on a faster network.

    Raises:
        HostFault: the master's name is invalid.
    """
    listed = {name for host in typed for name in (host.name, host.address)}
    enough = bool(typed) and (source.nodes is None or len(typed) >= source.nodes)
    if source.master is None or source.master in listed or enough:
        return tuple(typed)
    return (host_entry(source.master), *typed)


def cluster_name(hosts: Sequence[str]) -> str:
    """Return the common beginning of the names, without a number at its end: ``gpu`` for gpu1 and gpu2."""
    letters = [set(column) for column in zip(*(name.split(".")[0] for name in hosts), strict=False)]
    common = "".join(column.pop() for column in takewhile(lambda column: len(column) == 1, letters))
    common = re.sub(r"[\d._-]+$", "", common)
    return common if len(common) > 1 and is_name(common) else "cluster"


def filter_hosts(hosts: Sequence[HostEntry], include: str | None, exclude: str | None) -> tuple[HostEntry, ...]:
    """Return the hosts that DeepSpeed's ``--include`` or ``--exclude`` selects: ``worker-1@worker-2:0,2``.

    If the filter names GPUs of a host, that host runs as many processes, and they see these GPUs alone.

    Raises:
        HostFault: both filters are given, a host is unknown, or a GPU is not a number.
    """
    if include and exclude:
        raise HostFault("--include and --exclude are both given", hint="give one of the two")
    wanted = _filter(include or exclude or "", [host.name for host in hosts])
    if include:
        by_name = {host.name: host for host in hosts}
        return tuple(_only(by_name[name], gpus) for name, gpus in wanted.items())
    found = []
    for host in hosts:
        if host.name not in wanted:
            found.append(host)
        elif wanted[host.name]:
            if not isinstance(host.slots, int):
                raise HostFault(f"--exclude names GPUs of {host.name}, and its slots are not known")
            left = [number for number in range(host.slots) if number not in wanted[host.name]]
            found += [_only(host, left)] if left else []
    return tuple(found)


def _filter(text: str, known: Sequence[str]) -> dict[str, list[int]]:
    """Parse a filter: host -> its GPUs; an empty list: all GPUs."""
    found: dict[str, list[int]] = {}
    for part in filter(None, text.split("@")):
        name, colon, numbers = part.partition(":")
        gpus = numbers.split(",") if colon else []
        if name not in known:
            shown = ", ".join(known[:MOST_HOST_NAMES]) or "none"
            raise HostFault(f"{name!r} is none of the hosts", hint=f"the hosts are: {shown}")
        chosen = [whole_number(gpu, 0, 999) for gpu in gpus]
        if None in chosen:
            raise HostFault(f"{numbers!r} are no GPUs", hint="write worker-1:0,1")
        found[name] = [gpu for gpu in chosen if gpu is not None]
    return found


def _only(host: HostEntry, gpus: Sequence[int]) -> HostEntry:
    if not gpus:
        return host
    env = {**host.env, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    return host.model_copy(update={"slots": len(gpus), "env": env})
