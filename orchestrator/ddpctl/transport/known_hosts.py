"""known_hosts files as OpenSSH reads them: patterns, hashed names, ports, @revoked, @cert-authority.

Pure, except for ``load``.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from ddpctl.transport.certificates import TAIL, Certificate, wire_type
from ddpctl.transport.ssh_words import Patterns

SSH_PORT = 22
# Supported key types, best first, and the signature algorithms of each type.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


class Verdict(enum.Enum):
    """The result of comparing a server's key with known_hosts."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Key:
    """A public host key: its type, and its blob in wire format."""

    type: str
    blob: bytes
    certificate: Certificate | None = field(default=None, compare=False)  # the certificate that came with the key

    @property
    def sha256(self) -> str:
        """The fingerprint, in the format of ssh-keygen."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode("ascii").rstrip("=")


@dataclass(frozen=True)
class KnownHost:
    """A line of a known_hosts file."""

    names: HostPatterns
    key: Key
    revoked: bool
    place: str  # file:line
    authority: bool = False  # a key that signs the keys of hosts


class HostPatterns:
    """The hosts of a line: plain names, patterns, or a hashed name."""

    def __init__(self, field: str) -> None:
        self._hashed: tuple[bytes, bytes] | None = None
        self._patterns = Patterns(())
        # The names, if all are plain: a dictionary then finds the line. None if the line has to be matched.
        self.plain: tuple[str, ...] | None = None
        if field.startswith("|1|"):
            salt, _, digest = field[3:].partition("|")
            self._hashed = (base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True))
        else:
            words = field.lower().split(",")
            self._patterns = Patterns(words)
            if not any(letter in "*?!" for letter in field):
                self.plain = tuple(words)

    def match(self, name: str) -> bool:
        if self._hashed is None:
            return self._patterns.match((name.lower(),))
        salt, digest = self._hashed
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


@dataclass(frozen=True)
class KnownHosts:
    """The lines of several files. ``notes`` say which lines are unusable, and why."""

    entries: tuple[KnownHost, ...] = ()
    notes: tuple[str, ...] = ()
    _found: dict[str, tuple[KnownHost, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __add__(self, other: KnownHosts) -> KnownHosts:
        return KnownHosts(self.entries + other.entries, self.notes + other.notes)

    def lines_about(self, name: str, port: int) -> tuple[KnownHost, ...]:
        """Return the lines about a server, revoked keys and authorities included."""
        entry_for = entry_name(name, port)
        if entry_for not in self._found:  # a digest for each line with a hashed name, so the result is kept
            plain, others = self._index
            hashed = (entry for entry in others if entry.names.match(entry_for))
            self._found[entry_for] = (*plain.get(entry_for.lower(), ()), *hashed)
        return self._found[entry_for]

    @cached_property
    def _index(self) -> tuple[dict[str, list[KnownHost]], tuple[KnownHost, ...]]:
        """The lines by plain name, and the lines that have to be matched."""
        plain: dict[str, list[KnownHost]] = {}
        for entry in self.entries:
            for name in entry.names.plain or ():
                plain.setdefault(name, []).append(entry)
        return plain, tuple(entry for entry in self.entries if entry.names.plain is None)

    def algorithms(self, name: str, port: int) -> tuple[str, ...]:
        """Return the host key algorithms to offer, best first.

        The types of the server's known keys come first, so that the server shows a known key or its certificate.
        """
        mine = [entry for entry in self._with_plain_name(name, port) if not entry.revoked]
        types = {entry.key.type for entry in mine if not entry.authority}
        signed = any(entry.authority for entry in mine)
        certified = [f"{name}{TAIL}" for name in algorithm_order(())] if signed else []
        return (*certified, *algorithm_order([kind for kind in ALGORITHMS if kind in types]))

    def judge_key(self, name: str, port: int, key: Key) -> tuple[Verdict, tuple[KnownHost, ...]]:
        """Return the verdict on ``key`` and the lines behind it (for CHANGED: the lines with other keys)."""
        entries = self._with_plain_name(name, port)
        signer = key.certificate.authority if key.certificate else b""
        revoked = tuple(entry for entry in entries if entry.revoked and entry.key.blob in (key.blob, signer))
        if revoked:
            return Verdict.REVOKED, revoked
        if key.certificate is not None and key.certificate.why_not(name) is None:
            signers = tuple(entry for entry in entries if entry.authority and entry.key.blob == signer)
            if signers:
                return Verdict.KNOWN, signers
        same = tuple(entry for entry in entries if entry.key == key and not entry.authority)
        if same:
            return Verdict.KNOWN, same
        # On a port other than 22, the key of the plain name can only confirm: as for OpenSSH, it may be another
        # server's.
        exact = (entry for entry in self.lines_about(name, port) if not entry.revoked and not entry.authority)
        changed = tuple(entry for entry in exact if entry.key.type in ALGORITHMS)
        return (Verdict.CHANGED, changed) if changed else (Verdict.UNKNOWN, ())

    def authorities(self, name: str, port: int) -> tuple[KnownHost, ...]:
        """Return the lines that name authorities for this server's key."""
        return tuple(entry for entry in self._with_plain_name(name, port) if entry.authority)

    def _with_plain_name(self, name: str, port: int) -> tuple[KnownHost, ...]:
        found = self.lines_about(name, port)
        return found if port == SSH_PORT else found + self.lines_about(name, SSH_PORT)


def entry_name(name: str, port: int) -> str:
    """Return the spelling of a server in known_hosts."""
    return name if port == SSH_PORT else f"[{name}]:{port}"


def forget(spelled: str, places: Iterable[str]) -> tuple[str, ...]:
    """Return the commands that remove a server's lines (``file:line``) from the files."""
    files = dict.fromkeys(place.rpartition(":")[0] for place in places)
    return tuple(f"ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(spelled)}" for file in files)


def line_for(name: str, port: int, key: Key) -> str:
    """Return the line that makes ``key`` known."""
    return f"{entry_name(name, port)} {key.type} {base64.b64encode(key.blob).decode('ascii')}"


def parse(text: str, source: str) -> KnownHosts:
    """Return every usable line. Other lines become notes, not errors: a bad line must not lock out a cluster."""
    entries: list[KnownHost] = []
    notes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        place = f"{source}:{number}"
        if marker not in ("", "@revoked", "@cert-authority"):
            notes.append(f"{place}: unknown marker {marker}")
        elif len(fields) < 3:
            notes.append(f"{place}: not a known_hosts line")
        else:
            try:
                key = _key(fields[1], fields[2])
                entries.append(
                    KnownHost(
                        HostPatterns(fields[0]), key, marker == "@revoked", place, authority=marker == "@cert-authority"
                    )
                )
            except ValueError:
                notes.append(f"{place}: the key or the hashed name is damaged")
    return KnownHosts(tuple(entries), tuple(notes))


def _key(kind: str, text: str) -> Key:
    blob = base64.b64decode(text, validate=True)
    if wire_type(blob) != kind:
        raise ValueError("the key is not of the type that its line names")
    return Key(kind, blob)


@lru_cache(maxsize=64)
def _read(files: tuple[tuple[str, int, int], ...]) -> KnownHosts:
    """Parse the files. Time and size are arguments, so that the cache misses when a file changes."""
    known = KnownHosts()
    for path, _time, _size in files:
        known += parse(Path(path).read_text("utf-8", "replace"), path)
    return known


def load(paths: Iterable[str]) -> KnownHosts:
    """Return the lines of all files that exist and can be read."""
    there: list[tuple[str, int, int]] = []
    notes: list[str] = []
    for path in paths:
        try:
            stat = Path(path).stat()
            if not os.access(path, os.R_OK):
                notes.append(f"{path}: not readable")
                continue
            there.append((path, stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            continue
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
    try:
        known = _read(tuple(there))
    except OSError as error:  # too many open files, or the path is a folder
        known = KnownHosts(notes=(f"{error.filename}: {error.strerror}",))
    return replace(known, notes=(*known.notes, *notes)) if notes else known


def algorithm_order(types: Sequence[str]) -> tuple[str, ...]:
    """Return the host key algorithms to offer: first the algorithms of ``types``, then all the rest."""
    kinds = [*types, *(kind for kind in ALGORITHMS if kind not in types)]
    return tuple(name for kind in kinds for name in ALGORITHMS[kind])
