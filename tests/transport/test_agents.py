"""Agents that take their time: an agent that waits for a person, an agent that never signs, an agent that refuses."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from ddpctl.errors import AgentSilent, AuthRefused
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.transport import agent
from ddpctl.transport.fleet import open_fleet
from tests.lab import Lab
from tests.lab.keys import run_agent
from tests.transport.support import one_line


class SlowAgent:
    """Speaks the agent's protocol with a single key; each signature takes as long as a person does, or for ever."""

    def __init__(self, path: Path, key: Path, patience: float | None) -> None:
        self.path = path
        self.signed: list[float] = []
        self.refuses = False
        self._key = paramiko.Ed25519Key.from_private_key_file(str(key))
        self._patience = patience
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
                request = connection.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)
                answer = paramiko.Message()
                if request[0] == 11:
                    answer.add_byte(b"\x0c")
                    answer.add_int(1)
                    answer.add_string(self._key.asbytes())
                    answer.add_string("a token")
                elif self.refuses:
                    answer.add_byte(b"\x05")
                else:
                    self.signed.append(time.monotonic())
                    if self._patience is None:
                        continue
                    time.sleep(self._patience)
                    fields = paramiko.Message(request[1:])
                    fields.get_string()
                    answer.add_byte(b"\x0e")
                    answer.add_string(self._key.sign_ssh_data(fields.get_string()))
                data = answer.asbytes()
                connection.sendall(struct.pack(">I", len(data)) + data)

    def close(self) -> None:
        self._server.close()


@contextmanager
def slow_agent(folder: Path, key: Path, patience: float | None) -> Iterator[SlowAgent]:
    found = SlowAgent(folder / f"agent-{patience}", key, patience)
    try:
        yield found
    finally:
        found.close()


def of_three(lab: Lab, folder: Path, slow: SlowAgent) -> Inventory:
    config = folder / "config"
    config.write_text(f"Host *\n  User root\n  IdentityAgent {slow.path}\n  IdentityFile none\n")
    hosts = tuple(Host(name=host.name, address=host.address) for host in lab)
    return Inventory(hosts=hosts, ssh_config=str(config), known_hosts=str(lab.known_hosts))


def test_agents_that_wait_for_a_person(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host gets its signature, longer after the first than its sshd waits for a login (LoginGraceTime)."""
    monkeypatch.setattr(agent, "AGENT_LIST_S", 3.0)  # less than a person takes
    for host in lab3:
        host.sshd_config("LoginGraceTime 12")
    with slow_agent(tmp_path, lab3.key, 5.0) as slow:
        fleet = open_fleet(of_three(lab3, tmp_path, slow))
        outcome = fleet.map(lambda transport: transport.call("echo"))
        fleet.close()
        assert outcome.ok, {name: str(error) for name, error in outcome.errors.items()}
        assert len(slow.signed) == 3, "one request a host"
        gaps = [after - before for before, after in zip(slow.signed, slow.signed[1:], strict=False)]
        assert all(gap > 4.9 for gap in gaps), "one at a time"

        lab3[1].refuse_key()
        slow.signed.clear()
        fleet = open_fleet(of_three(lab3, tmp_path, slow), ["node1"])
        error = fleet.map(lambda transport: transport.call("echo")).errors["node1"]
        fleet.close()
        one_line(error, "a token (agent)", "ssh-copy-id root@")
        assert slow.signed == [], "nobody is asked for a key that the server does not want"

        slow.refuses = True
        fleet = open_fleet(of_three(lab3, tmp_path, slow), ["node0"])
        error = fleet.map(lambda transport: transport.call("echo")).errors["node0"]
        fleet.close()
        assert isinstance(error, AuthRefused)
        one_line(error, "a token (agent), which the agent does not sign with")


def test_an_agent_that_never_signs(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "AGENT_SIGN_S", 5.0)
    with slow_agent(tmp_path, lab3.key, None) as slow:
        fleet = open_fleet(of_three(lab3, tmp_path, slow))
        outcome = fleet.map(lambda transport: transport.call("echo"))
        fleet.close()
        assert len(outcome.errors) == 3
        for host, error in outcome.errors.items():
            assert isinstance(error, AgentSilent)
            assert error.exit_code == 4
            one_line(error, f"{host}: the agent at {slow.path} does not sign", "touch", "(5 s)")
            assert lab3.hosts[0].address not in str(error)
        assert len(slow.signed) == 1, "a silent agent is asked once"


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """An agent that says this, whatever it is asked."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 10)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield


def test_damaged_answers(tmp_path: Path) -> None:
    """Whatever an agent sends: its keys, an OSError, never anything else."""
    for number, answer in enumerate(
        (b"", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05\x0c\xff\xff\xff\xff")
    ):
        path = tmp_path / str(number)
        with answering(path, answer):
            asked = agent.Agent(str(path))
            with pytest.raises(OSError):  # noqa: PT011  # of any kind
                asked.keys()
            asked.close()


def test_a_damaged_signature_is_none(tmp_path: Path) -> None:
    """The next key is tried then, instead of an internal error."""
    for number, answer in enumerate((b"\x00\x00\x00\x00", b"\x00\x00\x00\x05\x0e\xff\xff\xff\xff")):
        path = tmp_path / str(number)
        with answering(path, answer):
            asked = agent.Agent(str(path))
            with pytest.raises(agent.AgentRefused):
                asked.sign(b"key", b"data", "ssh-ed25519")
            asked.close()


def test_a_real_agent_signs_for_rsa(lab3: Lab, tmp_path: Path) -> None:
    """With SHA-2: a server of today takes nothing else."""
    key, path = tmp_path / "rsa", tmp_path / "real"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", key], check=True)
    before = lab3[0].read("/root/.ssh/authorized_keys")
    lab3[0].write("/root/.ssh/authorized_keys", before + "\n" + Path(f"{key}.pub").read_text(), 0o600)
    try:
        with run_agent(path, key):
            for text in (f"IdentityAgent {path}\nIdentityFile none\n", f"IdentityAgent none\nIdentityFile {key}\n"):
                (tmp_path / "config").write_text(f"User root\n{text}")
                host = Host(name="node0", address=lab3[0].address)
                config = str(tmp_path / "config")
                fleet = open_fleet(Inventory(hosts=(host,), ssh_config=config, known_hosts=str(lab3.known_hosts)))
                assert fleet.map(lambda transport: transport.call("echo")).ok
                fleet.close()
    finally:
        lab3[0].write("/root/.ssh/authorized_keys", before, 0o600)
