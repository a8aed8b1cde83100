"""OpenSSH certificates: parsing, and the check whether a certificate is valid for a host. Pure.

The format is PROTOCOL.certkeys of OpenSSH. cryptography checks the signature, through paramiko's key classes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import paramiko

from ddpctl.transport.ssh_words import compile_pattern

TAIL = "-cert-v01@openssh.com"
_USER, _HOST = 1, 2
# Number of fields of a certificate that belong to the key itself, by key type.
_KEY_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
# Accepted signature types of an authority. ssh-rsa is missing because it is SHA-1.
_SIGNATURES = frozenset({*_KEY_FIELDS, "rsa-sha2-256", "rsa-sha2-512"} - {"ssh-rsa"})


@dataclass(frozen=True)
class Certificate:
    """A parsed certificate. Nothing is verified yet."""

    key_type: str  # type of the certified key
    key: bytes  # blob of the certified key
    kind: int
    key_id: str
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bytes
    authority: bytes  # blob of the key that signed the certificate
    signature: bytes
    signed: bytes

    def expired(self, now: float) -> bool:
        return now >= self.valid_before

    def why_not(self, name: str, now: float | None = None) -> str | None:
        """Return why the certificate is not valid for the host ``name``, or None if it is valid.

        The caller checks whether it trusts the authority that signed the certificate.
        """
        now = time.time() if now is None else now
        if self.kind != _HOST:
            return "it is not a host's certificate"
        if now < self.valid_after:
            return "it is not valid yet"
        if self.expired(now):
            return "it has expired"
        if self.principals and not any(compile_pattern(each).fullmatch(name.lower()) for each in self.principals):
            return f"it is for {', '.join(self.principals)}"
        if self.critical:
            return "it has a critical option that ddpctl does not know"
        return None if self._signature_fits() else "its signature is wrong"

    def _signature_fits(self) -> bool:
        try:
            fields = Fields(self.signature)
            kind = fields.text()
            fields.string()
            if kind not in _SIGNATURES or fields.at != len(self.signature):
                return False
            name = paramiko.Message(self.authority).get_text()
            authority = paramiko.PKey.from_type_string(name, self.authority)
            return bool(authority.verify_ssh_sig(self.signed, paramiko.Message(self.signature)))
        except Exception:  # a damaged certificate can raise anything in the parsers of two libraries
            return False


def parse(blob: bytes) -> Certificate:
    """Return the certificate in ``blob``, which is in wire format.

    Raises:
        ValueError: the blob is not a certificate.
    """
    fields = Fields(blob)
    kind = fields.text()
    if not kind.endswith(TAIL):
        raise ValueError("not a certificate")
    base = kind.removesuffix(TAIL)
    base = f"{base}@openssh.com" if base.startswith("sk-") else base
    if base not in _KEY_FIELDS:
        raise ValueError(f"a certificate of an unknown type: {kind}")
    fields.string()  # the nonce
    own = [fields.string() for _ in range(_KEY_FIELDS[base])]
    fields.take(8)  # the serial number
    role, key_id, principals = fields.number(4), fields.text(), fields.string()
    after, before = fields.number(8), fields.number(8)
    critical, _extensions, _reserved = fields.string(), fields.string(), fields.string()
    authority = fields.string()
    signed = blob[: fields.at]
    signature = fields.string()
    if fields.at != len(blob):
        raise ValueError("something follows the certificate")
    key = b"".join(pack_strings(part) for part in (base.encode(), *own))
    names = Fields(principals).all_texts()
    return Certificate(base, key, role, key_id, names, after, before, critical, authority, signature, signed)


def wire_type(blob: bytes) -> str:
    """Return the type at the start of a key or certificate in wire format."""
    return Fields(blob).text()


def pack_strings(data: bytes) -> bytes:
    """Return ``data`` as a string of RFC 4251: length, then bytes."""
    return len(data).to_bytes(4, "big") + data


class Fields:
    """Reads the fields of a message in order.

    Raises:
        ValueError: the data end before the field does.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self.at : self.at + size]
        if len(part) != size:
            raise ValueError("it ends too early")
        self.at += size
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        return self.take(self.number(4))

    def text(self) -> str:
        return self.string().decode("utf-8", "replace")

    def all_texts(self) -> tuple[str, ...]:
        found = []
        while self.at < len(self._data):
            found.append(self.text())
        return tuple(found)
