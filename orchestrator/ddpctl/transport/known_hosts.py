"""known_hosts files as OpenSSH reads them: patterns, hashed names, ports, @revoked. Pure but for ``load``."""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from ddpctl.transport.ssh_config import Patterns

SSH_PORT = 22
# Key types that can be negotiated here, best first, and the signature algorithms each stands for.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


class Verdict(enum.Enum):
    """What known_hosts says about a key that a server showed."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Key:
    """A public host key: its type, and its blob as it goes over the wire."""

    type: str
    blob: bytes

    @property
    def sha256(self) -> str:
        """The fingerprint as ssh-keygen prints it."""
        return fingerprint(self.blob)


@dataclass(frozen=True)
class Entry:
    """One line."""

    names: Names
    key: Key
    revoked: bool
    place: str  # file:line


class Names:
    """Whom a line is about: plain names, patterns, or one hashed name."""

    def __init__(self, field: str) -> None:
        self._hashed: tuple[bytes, bytes] | None = None
        self._patterns = Patterns(())
        # Where every name is plain a dictionary can find the line; None where it has to be asked.
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
    """Several files as one; ``notes`` say which lines could not be used, and why."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: KnownHosts) -> KnownHosts:
        return KnownHosts(self.entries + other.entries, self.notes + other.notes)

    def keys(self, name: str, port: int) -> tuple[Entry, ...]:
        """The lines about a server, revoked ones too."""
        wanted = entry_name(name, port)
        plain, others = self._index
        return (*plain.get(wanted.lower(), ()), *(entry for entry in others if entry.names.match(wanted)))

    @cached_property
    def _index(self) -> tuple[dict[str, list[Entry]], tuple[Entry, ...]]:
        """Lines by plain name, and those that have to be asked one by one."""
        plain: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for name in entry.names.plain or ():
                plain.setdefault(name, []).append(entry)
        return plain, tuple(entry for entry in self.entries if entry.names.plain is None)

    def types(self, name: str, port: int) -> tuple[str, ...]:
        """The types of the keys that are known of a server, to be asked for first; unusable types left out."""
        found = {entry.key.type for entry in self._about(name, port) if not entry.revoked}
        return tuple(kind for kind in ALGORITHMS if kind in found)

    def judge(self, name: str, port: int, key: Key) -> tuple[Verdict, tuple[Entry, ...]]:
        """What to think of ``key``, and the lines that say so (those with another key, where it changed)."""
        revoked = tuple(entry for entry in self.entries if entry.revoked and entry.key == key)
        about = self._about(name, port)
        if any(entry in about or entry.names.match(name) for entry in revoked):
            return Verdict.REVOKED, revoked
        same = tuple(entry for entry in about if entry.key == key)
        if same:
            return Verdict.KNOWN, same
        # On another port the plain name's key counts only when it fits, as for OpenSSH: it may be another server's.
        others = tuple(e for e in self.keys(name, port) if not e.revoked and e.key.type in ALGORITHMS)
        return (Verdict.CHANGED, others) if others else (Verdict.UNKNOWN, ())

    def _about(self, name: str, port: int) -> tuple[Entry, ...]:
        found = self.keys(name, port)
        return found if port == SSH_PORT else found + self.keys(name, SSH_PORT)


def entry_name(name: str, port: int) -> str:
    """How known_hosts spells a server."""
    return name if port == SSH_PORT else f"[{name}]:{port}"


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` of a key's blob."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def line_for(name: str, port: int, key: Key) -> str:
    """The line that makes ``key`` known."""
    return f"{entry_name(name, port)} {key.type} {base64.b64encode(key.blob).decode('ascii')}"


def parse(text: str, source: str) -> KnownHosts:
    """Every usable line; the others become notes, never errors: one bad line must not lock out a cluster."""
    entries: list[Entry] = []
    notes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        place = f"{source}:{number}"
        if marker == "@cert-authority":
            notes.append(f"{place}: @cert-authority is not used: host keys are compared, not certificates")
        elif marker not in ("", "@revoked"):
            notes.append(f"{place}: unknown marker {marker}")
        elif len(fields) < 3:
            notes.append(f"{place}: not a known_hosts line")
        else:
            try:
                entries.append(Entry(Names(fields[0]), _key(fields[1], fields[2]), marker == "@revoked", place))
            except (ValueError, binascii.Error, struct.error):
                notes.append(f"{place}: the key or the hashed name is damaged")
    return KnownHosts(tuple(entries), tuple(notes))


def _key(kind: str, text: str) -> Key:
    blob = base64.b64decode(text, validate=True)
    (size,) = struct.unpack(">I", blob[:4])
    if blob[4 : 4 + size] != kind.encode():
        raise ValueError("the key is of another type than its line says")
    return Key(kind, blob)


@cache
def _load_file(path: str, _stamp: tuple[int, int]) -> KnownHosts:
    return parse(Path(path).read_text("utf-8", "replace"), path)


def load(paths: Iterable[str]) -> KnownHosts:
    """All of the files that exist; each is parsed once as long as it does not change."""
    known = KnownHosts()
    for path in paths:
        try:
            stat = Path(path).stat()
            known += _load_file(path, (stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            continue
        except OSError as error:
            known += KnownHosts(notes=(f"{path}: {error.strerror}",))
    return known


def order(types: Sequence[str]) -> tuple[str, ...]:
    """Host key algorithms to offer: those of the known keys first, so that a known server shows its known key."""
    kinds = [*types, *(kind for kind in ALGORITHMS if kind not in types)]
    return tuple(name for kind in kinds for name in ALGORITHMS[kind])
