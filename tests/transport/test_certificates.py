"""Certificates as ssh-keygen makes them, and malformed certificates."""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.transport import certificates
from ddpctl.transport.certificates import TAIL
from ddpctl.transport.known_hosts import Key, Verdict, parse

pytestmark = pytest.mark.slow

KINDS = {"ed25519": "ssh-ed25519", "ecdsa": "ecdsa-sha2-nistp256", "rsa": "ssh-rsa"}


def keygen(*args: object) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, args)], check=True, capture_output=True)


def blob(file: Path) -> bytes:
    return base64.b64decode(file.read_text().split()[1])


def make(folder: Path, kind: str, *options: str, authority: str = "ed25519") -> tuple[bytes, bytes, bytes]:
    """The blobs of a new certificate, of its key, and of its signer."""
    for name, each in (("ca", authority), ("key", kind)):
        (folder / name).unlink(missing_ok=True)
        keygen("-t", each, "-N", "", "-f", folder / name)
    keygen("-s", folder / "ca", "-I", "me", *options, folder / "key.pub")
    return blob(folder / "key-cert.pub"), blob(folder / "key.pub"), blob(folder / "ca.pub")


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_host(kind: str, tmp_path: Path) -> None:
    certificate, key, authority = make(tmp_path, kind, "-h", "-n", "h.lab,*.farm", "-V", "-1h:+1h", authority=kind)
    read = certificates.parse(certificate)
    assert (read.key_type, read.key, read.authority) == (KINDS[kind], key, authority)
    assert (certificates.wire_type(certificate), certificates.wire_type(key)) == (f"{KINDS[kind]}{TAIL}", KINDS[kind])
    assert read.why_not("h.lab") is None
    assert read.why_not("n1.farm") is None
    assert "it is for" in str(read.why_not("other"))
    assert read.why_not("h.lab", time.time() + 4000) == "it has expired"
    assert read.why_not("h.lab", time.time() - 8000) == "it is not valid yet"

    line = f"@cert-authority *.lab {KINDS[kind]} {base64.b64encode(authority).decode()}\n"
    shown = Key(KINDS[kind], key, read)
    revoked, own = (f"@revoked * {KINDS[kind]} {base64.b64encode(one).decode()}\n" for one in (authority, key))
    for lines, name, verdict in (
        (line, "h.lab", Verdict.KNOWN),
        (line, "other.lab", Verdict.UNKNOWN),  # the certificate does not name it
        (line.replace("*.lab", "else"), "h.lab", Verdict.UNKNOWN),
        (line + revoked, "h.lab", Verdict.REVOKED),
        (line + own, "h.lab", Verdict.REVOKED),
        ("", "h.lab", Verdict.UNKNOWN),
    ):
        assert parse(lines, "k").judge_key(name, 22, shown)[0] is verdict, (lines, name)
    assert parse(line, "k").judge_key("h.lab", 2222, shown)[0] is Verdict.KNOWN
    assert parse(line, "k").judge_key("h.lab", 22, Key(KINDS[kind], key))[0] is Verdict.UNKNOWN, (
        "no certificate was shown"
    )
    assert parse(line, "k").judge_key("h.lab", 22, Key(KINDS[kind], authority))[0] is Verdict.UNKNOWN, (
        "it signs, no more"
    )


def test_what_does_not_speak_for_a_host(tmp_path: Path) -> None:
    user, _, _ = make(tmp_path, "ed25519", "-n", "h")
    assert certificates.parse(user).why_not("h") == "it is not a host's certificate"
    critical, _, _ = make(tmp_path, "ed25519", "-h", "-n", "h", "-O", "critical:x@y=z")
    assert "critical option" in str(certificates.parse(critical).why_not("h"))
    keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", tmp_path / "old")
    keygen("-s", tmp_path / "old", "-t", "ssh-rsa", "-h", "-I", "me", "-n", "h", tmp_path / "key.pub")
    assert certificates.parse(blob(tmp_path / "key-cert.pub")).why_not("h") == "its signature is wrong", "SHA-1"
    with pytest.raises(ValueError, match="not a certificate"):
        certificates.parse(blob(tmp_path / "key.pub"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("keys"), "ed25519", "-h", "-n", "h")[0]


@given(data=st.data())
def test_a_changed_byte_is_never_believed(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    other = bytes([good[at] ^ data.draw(st.integers(1, 255))])
    try:
        assert certificates.parse(good[:at] + other + good[at + 1 :]).why_not("h") is not None
    except ValueError:
        return


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        certificates.parse(b"\0\0\0\x20ssh-ed25519-cert-v01@openssh.com" + data)
    except ValueError:
        return
