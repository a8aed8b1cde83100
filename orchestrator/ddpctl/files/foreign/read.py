"""Reads another tool's file with hosts. Its content decides which kind of file it is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ddpctl.errors import InventoryError
from ddpctl.files.foreign.accelerate import read_document
from ddpctl.files.foreign.hostfile import read_hostfile
from ddpctl.files.foreign.place import Word, rows
from ddpctl.files.limits import YAML_BYTES
from ddpctl.files.tree import decode
from ddpctl.spec.draft import HostFault, Imported, filter_hosts, host_entry

_EXPECTED = "expected: a hostfile (node1 slots=8), or what `accelerate config` writes"
_KEY = re.compile(r"(?:[A-Za-z_][\w.-]*|\"[^\"]*\"|'[^']*'|[\w.-]+)\s*:(?:\s.*)?")
_SECTION = re.compile(r"\[[^\]\s]*\](\s*#.*)?")


def read_foreign(path: Path) -> Imported:
    """Return the hosts in another tool's file.

    Raises:
        InventoryError: the file cannot be read, is of no known kind or of two, or has a fault.
    """
    file = str(path)
    found = read_text(decode(_read(path, file), file, tabs=True), file)
    return with_hostfile(found, path.parent)


def with_hostfile(found: Imported, folder: Path) -> Imported:
    """Return ``found`` with the hosts of the hostfile that it names, filtered by its --include and --exclude.

    Raises:
        InventoryError: the hostfile cannot be read or has a fault, or a filter names other hosts.
    """
    hosts = found.hosts
    if found.hostfile is not None:
        path = folder / Path(found.hostfile).expanduser()
        hosts = read_hostfile(decode(_read(path, str(path)), str(path), tabs=True), str(path)).hosts
    found = replace(found, hosts=hosts, hostfile=None)
    if not (found.include or found.exclude):
        return found
    try:
        if not hosts and found.include:
            hosts = tuple(host_entry(part.partition(":")[0]) for part in found.include.split("@") if part)
        chosen = filter_hosts(hosts, found.include, found.exclude)
    except HostFault as error:
        raise InventoryError(str(error), file=found.kind, hint=error.hint) from None
    if not chosen:
        raise InventoryError("--include and --exclude leave no host", file=found.kind)
    return replace(found, hosts=chosen, include=None, exclude=None)


def read_text(text: str, file: str) -> Imported:
    """Do ``read_foreign`` for the text of a file; a hostfile that it names is not opened."""
    lines = list(rows(text, file, "#;"))
    if not lines:
        raise Word("", file, 1, 1).fault("there is nothing in it", _EXPECTED)
    first = lines[0]
    if text.startswith("#!"):
        raise Word("", file, 1, 1).fault("is a program", "give the file that it writes, or the hosts with --host")
    section = next((line for line in lines if _SECTION.fullmatch(line.text)), None)
    if section is not None:
        raise section.fault("is a section of an INI file", f"{_EXPECTED}; or name the hosts: --host gpu[1-8]")
    if first.text.startswith(("---", "{", "- ", "%")) or _KEY.fullmatch(first.text):
        # Only YAML forbids tabs.
        return read_document(decode(text.encode("utf-8", "surrogatepass"), file), file)
    return read_hostfile(text, file)


def _read(path: Path, file: str) -> bytes:
    try:
        with path.expanduser().open("rb") as stream:
            return stream.read(YAML_BYTES + 1)
    except OSError as error:
        raise InventoryError(f"cannot be read: {error.strerror}", file=file, hint="check the path") from None
