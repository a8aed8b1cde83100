"""known_hosts as OpenSSH reads it."""

from __future__ import annotations

import base64
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.transport.known_hosts import Key, Verdict, algorithm_order, line_for, load, parse


def key(number: int, kind: str = "ssh-ed25519") -> Key:
    return Key(kind, struct.pack(">I", len(kind)) + kind.encode() + struct.pack(">I", 32) + bytes([number]) * 32)


def text(key: Key) -> str:
    return f"{key.type} {base64.b64encode(key.blob).decode()}"


A, B, E = key(1), key(2), key(3, "ecdsa-sha2-nistp256")


def judge(lines: str, name: str, shown: Key, port: int = 22) -> Verdict:
    return parse(lines, "known_hosts").judge_key(name, port, shown)[0]


@pytest.mark.parametrize(
    ("lines", "name", "port", "shown", "verdict"),
    [
        ("", "h", 22, A, Verdict.UNKNOWN),
        (f"h {text(A)}", "h", 22, A, Verdict.KNOWN),
        (f"h {text(A)}", "H", 22, A, Verdict.KNOWN),
        (f"h {text(A)}", "h", 22, B, Verdict.CHANGED),
        (f"h {text(A)}", "other", 22, A, Verdict.UNKNOWN),
        (f"a,h,10.0.0.1 {text(A)} comment here", "10.0.0.1", 22, A, Verdict.KNOWN),
        (f"*.lab {text(A)}", "x.lab", 22, A, Verdict.KNOWN),
        (f"*.lab,!bad.lab {text(A)}", "bad.lab", 22, A, Verdict.UNKNOWN),
        (f"node? {text(A)}", "node1", 22, A, Verdict.KNOWN),
        (f"h {text(A)}\nh {text(B)}", "h", 22, B, Verdict.KNOWN),
        (f"h {text(E)}", "h", 22, A, Verdict.CHANGED),
        (f"h {text(E)}\nh {text(A)}", "h", 22, A, Verdict.KNOWN),
        (f"[h]:2222 {text(A)}", "h", 2222, A, Verdict.KNOWN),
        (f"[h]:2222 {text(A)}", "h", 2222, B, Verdict.CHANGED),
        (f"[h]:2222 {text(A)}", "h", 22, A, Verdict.UNKNOWN),
        (f"h {text(A)}", "h", 2222, A, Verdict.KNOWN),
        (f"h {text(A)}", "h", 2222, B, Verdict.UNKNOWN),
        (f"@revoked h {text(A)}", "h", 22, A, Verdict.REVOKED),
        (f"@revoked * {text(A)}\nh {text(A)}", "h", 22, A, Verdict.REVOKED),
        (f"@revoked h {text(A)}", "h", 22, B, Verdict.UNKNOWN),
        (f"@cert-authority *.lab {text(A)}\nx.lab {text(B)}", "x.lab", 22, B, Verdict.KNOWN),
        (f"@cert-authority *.lab {text(A)}", "x.lab", 22, A, Verdict.UNKNOWN),
        (f"\n# h {text(A)}\n  h   {text(A)}\r\n", "h", 22, A, Verdict.KNOWN),
        (f"h ssh-dss AAAAB3NzaC1kc3M=\nh {text(A)}", "h", 22, A, Verdict.KNOWN),
        (f"h ssh-ed25519 not-base64!\nh {text(A)}", "h", 22, A, Verdict.KNOWN),
        (f"|1|bad|hash {text(A)}\nh {text(A)}", "h", 22, A, Verdict.KNOWN),
    ],
)
def test_verdicts(lines: str, name: str, port: int, shown: Key, verdict: Verdict) -> None:
    assert judge(lines, name, shown, port) is verdict


def test_notes_name_the_line() -> None:
    lines = f"h {text(A)}\n@cert-authority * {text(A)[:-3]}\nshort line\n@odd h {text(A)}\nh ssh-ed25519 !!!\n"
    known = parse(lines, "/etc/k")
    assert [note.partition(": ")[0] for note in known.notes] == ["/etc/k:2", "/etc/k:3", "/etc/k:4", "/etc/k:5"]


@given(st.text())
def test_no_text_breaks_the_reader(lines: str) -> None:
    parse(lines, "x").judge_key("h", 22, A)


@given(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True), st.integers(min_value=1, max_value=65535))
def test_what_is_written_is_known(name: str, port: int) -> None:
    assert judge(line_for(name, port, A), name, A, port) is Verdict.KNOWN


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_names_hashed_by_openssh(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    kind, blob = (tmp_path / "k.pub").read_text().split()[:2]
    file.write_text(f"h,10.0.0.1 {kind} {blob}\n[h]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    known = load([str(file), str(tmp_path / "missing")])
    shown = Key(kind, base64.b64decode(blob))
    for name, port in (("h", 22), ("10.0.0.1", 22), ("h", 2222)):
        assert known.judge_key(name, port, shown)[0] is Verdict.KNOWN
    assert known.judge_key("other", 22, shown)[0] is Verdict.UNKNOWN
    printed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "k.pub"], check=True, capture_output=True, text=True)
    assert shown.sha256 == printed.stdout.split()[1]


def test_the_known_type_is_asked_for_first() -> None:
    assert parse(f"h {text(E)}", "x").algorithms("h", 22)[:2] == ("ecdsa-sha2-nistp256", "ssh-ed25519")
    signed = parse(f"@cert-authority h {text(A)}", "x").algorithms("h", 22)
    assert signed[0] == "ssh-ed25519-cert-v01@openssh.com"
    assert signed[-1] == "rsa-sha2-256"
    assert algorithm_order(("ssh-rsa",))[:2] == ("rsa-sha2-512", "rsa-sha2-256")
    assert len(algorithm_order(())) == len(set(algorithm_order(()))) == 6


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"h {text(A)}\n")
    assert load([str(file)]).judge_key("h", 22, A)[0] is Verdict.KNOWN
    with file.open("a") as out:
        out.write(f"g {text(B)}\n")
    assert load([str(file)]).judge_key("g", 22, B)[0] is Verdict.KNOWN
