"""The parsers, each as a function of bytes. An error that a parser does not declare is a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from ddpctl.errors import DdpctlError
from ddpctl.files.completion_names import names_in
from ddpctl.files.env_file import parse_env
from ddpctl.files.inventory import load_text
from ddpctl.render.clean import clean
from ddpctl.spec.imports import read_imports
from ddpctl.transport import known_hosts, ssh_config
from ddpctl.transport.answers import FRAMES, RESULTS, check_frame, check_result
from ddpctl.transport.base import Frame
from ddpctl.transport.bootstrap import BannerReader
from ddpctl.transport.pipe import FrameReader, parse
from ddpctl_worker.gang.wire import HubWire, MemberWire, from_wire
from ddpctl_worker.machine.strangers import Stranger
from ddpctl_worker.mesh.wire import auth_is_right, read_answer, read_greeting
from ddpctl_worker.record.lines import decode
from ddpctl_worker.record.metrics import is_finite, numbers_of
from ddpctl_worker.rules.pickled import load

KEY = bytes(32)
VERBS = sorted(RESULTS)


def read_frames(data: bytes) -> None:
    reader = FrameReader()
    with suppress(DdpctlError):
        reader.feed(data[: len(data) // 2])
        reader.feed(data[len(data) // 2 :])


def read_answers(data: bytes) -> None:
    """The first byte chooses the verb."""
    verb = VERBS[data[0] % len(VERBS)] if data else "echo"
    with suppress(DdpctlError):
        answer = parse(data[1:])
        if verb in FRAMES and data[0] >= 128:
            check_frame(verb, Frame(answer), "node1", {})
        else:
            check_result(verb, answer, "node1", {"run": "x", "questions": []})


def read_banner(data: bytes) -> None:
    reader = BannerReader("0" * 32)
    with suppress(DdpctlError):
        if reader.feed(data) is None:
            reader.feed(b"DDPCTL/1 " + b"0" * 32 + b" " + data)


def read_hello(data: bytes) -> None:
    """The first bytes that a stranger sends to a supervisor or an agent."""
    for wire in (HubWire(KEY, "run", ("a", "b")), MemberWire(KEY, "run", "a", "b")):
        with suppress(Stranger):
            wire.feed(data)


def read_peer(data: bytes) -> None:
    """A message of a node that has the run's key."""
    hub, member = HubWire(KEY, "run", ("a", "b")), MemberWire(KEY, "run", "a", "b")
    hub.feed(member.hello())
    member.feed(hub.reply)
    mac = member._message_mac(member._send_key, 0, data)
    with suppress(Stranger):
        for message in hub.feed(mac + b" " + data + b"\n"):
            from_wire(message)


def read_mesh(data: bytes) -> None:
    read_greeting(data)
    with suppress(ValueError):
        read_answer(KEY, data, "challenge")
    auth_is_right(KEY, data, "challenge", "mine")


def read_log_line(data: bytes) -> None:
    decode(data)


def read_metrics(data: bytes) -> None:
    json.dumps({name: value for name, value in numbers_of(data).items() if is_finite(value)}, allow_nan=False)


def read_pickle(data: bytes) -> None:
    for made in (data, b"\x80\x02" + data):
        with suppress(ValueError):
            load(made)


def read_ssh_config(data: bytes) -> None:
    with suppress(DdpctlError):
        ssh_config.parse(data.decode("utf-8", "replace"), "config", lambda name: ())


def read_known_hosts(data: bytes) -> None:
    with suppress(DdpctlError):
        known_hosts.parse(data.decode("utf-8", "replace"), "known_hosts")


def read_inventory(data: bytes) -> None:
    with suppress(DdpctlError):
        load_text(data, "/nowhere/inventory.yaml")


def read_env(data: bytes) -> None:
    with suppress(DdpctlError):
        parse_env(data, ".env")


def read_program(data: bytes) -> None:
    read_imports(lambda name: data, frozenset({"train.py"}), script="train.py")


def read_names(data: bytes) -> None:
    names_in(data.decode("utf-8", "replace"))


def clean_text(data: bytes) -> None:
    assert not set(clean(data.decode("utf-8", "replace"))) & {"\x1b", "\x07", "\x9b"}


PARSERS: dict[str, Callable[[bytes], None]] = {
    "frames": read_frames,
    "answers": read_answers,
    "banner": read_banner,
    "hello": read_hello,
    "peer": read_peer,
    "mesh": read_mesh,
    "log-line": read_log_line,
    "metrics": read_metrics,
    "pickle": read_pickle,
    "ssh-config": read_ssh_config,
    "known-hosts": read_known_hosts,
    "inventory": read_inventory,
    "env-file": read_env,
    "program": read_program,
    "completion": read_names,
    "clean": clean_text,
}

# A valid input for each parser that random bytes rarely get into.
SEEDS: dict[str, bytes] = {
    "frames": b'{"hb": 1}\n{"chunk": true, "raw": 3}\nabc{"ok": true, "result": {}}\n',
    "answers": b'\x01{"runs": [], "ports": [1], "file": {"path": "a", "size": 1}}',
    "banner": b"DDPCTL/1 " + b"0" * 32 + b" have\n",
    "hello": MemberWire(KEY, "run", "a", "b").hello(),
    "peer": b'{"state": "failed", "cause": {"kind": "exited"}, "victim": true}',
    "metrics": b'{"step": 1, "loss": 0.5}',
    "ssh-config": b"Host a*\n  HostName b\n  Port 22\nMatch user c !host d\n  ProxyJump e\nInclude f\n",
    "known-hosts": b"@revoked [a]:22,|1|YQ==|YQ== ssh-ed25519 AAAAC3NzaC1lZDI1NTE5\n",
    "inventory": b"cluster: a\nhosts: [n[0-1], {name: b, user: c}]\njobs: {t: {script: t.py, args: [x]}}\n",
    "env-file": b"export A='b'\nC=\"d\"\n# e\n",
    "program": b"try:\n    import a\nexcept ImportError:\n    from b import c\n",
    "completion": b"hosts:\n  - n[0-1]\njobs:\n  train: {script: a}\n",
    "clean": b"\x1b[31m\xe2\x80\xae",
}
