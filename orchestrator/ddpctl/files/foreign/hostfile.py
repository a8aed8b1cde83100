"""Hostfiles: ``node1 slots=8`` (DeepSpeed, Open MPI), ``node1:8`` (MPICH), a plain list (PBS repeats names)."""

from __future__ import annotations

import re

from ddpctl.files.foreign.place import Word, rows
from ddpctl.spec.draft import HostFault, Imported, host_entry
from ddpctl.spec.host import HostEntry
from ddpctl.spec.limits import MAX_COUNT, MAX_HOSTS
from ddpctl.spec.ranges import RangeFault, expand
from ddpctl.spec.values import whole_number

KIND = "hostfile"
_EXPECTED = "write `node1 slots=8` (DeepSpeed, Open MPI), `node1:8` (MPICH), or a name alone"
_SLOTS = ("slots", "cpu", "cpus", "np")
_LIMITS = ("max_slots", "max-slots", "slots_max", "slots-max")  # unused: ddpctl starts `slots` processes
_USERS = ("user", "username")
_IGNORED = ("binding", "boards", "sockets_per_board", "cores_per_socket", "ifname")
_WORD = re.compile(r"[^\s=]+(?:\s*=\s*[^\s=]+)?|=\S*")  # Open MPI also takes `slots = 8`


def read_hostfile(text: str, file: str) -> Imported:
    """Return the hosts of a hostfile, in its order.

    Raises:
        InventoryError: a line does not belong to a hostfile.
    """
    found: dict[str, HostEntry] = {}
    times: dict[str, int] = {}
    for row in rows(text, file, "#"):
        for entry in _row(_without_comment(row)):
            if entry.name in found and (found[entry.name].slots or entry.slots):
                raise row.fault(f"host {entry.name} is listed twice", "keep one of the two lines")
            times[entry.name] = times.get(entry.name, 0) + 1
            found.setdefault(entry.name, entry)
            if len(found) > MAX_HOSTS or times[entry.name] > MAX_COUNT:
                raise row.fault(f"more than {MAX_HOSTS} hosts, or {MAX_COUNT} lines of one host")
    if not found:
        raise Word("", file, 1, 1).fault("there is no host in it", _EXPECTED)
    repeated = any(count > 1 for count in times.values())  # a line for every process, as in PBS
    hosts = (host.model_copy(update={"slots": times[name]}) if repeated else host for name, host in found.items())
    return Imported(KIND, tuple(hosts))


def _without_comment(row: Word) -> Word:
    """Drop a comment, which needs no blank before its ``#``: a host's name has no ``#``."""
    return row.part(0, len(row.text.partition("#")[0].rstrip()))


def _row(row: Word) -> list[HostEntry]:
    first, *rest = (row.part(match.start(), match.end()) for match in _WORD.finditer(row.text))
    if first.text[0] in "^+":
        raise first.fault("hosts that are left out (^) or counted (+n) are not read", "write the hosts' names")
    user, host = (first, None) if "@" not in first.text else first.split("@")
    name, count = (host or user).split(":")
    keys: dict[str, object] = {"user": user.text if host else None}
    if count is not None:
        keys["slots"] = _count(count)
    for option in rest:
        _take(keys, option)
    try:
        names = expand(name.text)
        return [host_entry(each, **keys) for each in names]
    except RangeFault as error:
        raise name.fault(str(error)) from None
    except HostFault as error:
        raise name.fault(str(error), error.hint or _EXPECTED) from None


def _count(count: Word) -> int:
    if whole_number(count.text, MAX_COUNT + 1, 65535) is not None:
        raise count.fault(
            f"{count.text} is more than {MAX_COUNT} processes: in a hostfile the number after ':' counts processes",
            "a port goes to Port in ~/.ssh/config",
        )
    return count.slots()


def _take(keys: dict[str, object], option: Word) -> None:
    name, value = (part and part.strip() for part in option.split("="))
    assert name is not None
    word = name.text.lower()
    if value is None or not value.text or not word:
        raise option.fault(f"{option.text[:40]!r} is not understood", _EXPECTED)
    if word in _SLOTS:
        if keys.get("slots") is not None:
            raise option.fault("slots are given twice", "keep one of the two")
        keys["slots"] = value.slots()
    elif word in _LIMITS:
        value.number(word, MAX_COUNT * 64)
    elif word in _USERS:
        keys["user"] = value.text
    elif word not in _IGNORED:
        raise name.fault(f"{name.text[:40]!r} is no key of a hostfile", f"known: slots, max_slots, user; {_EXPECTED}")
