"""Keys of hosts and of users, passphrases and passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.errors import (
    AuthRefused,
    HostKeyChanged,
    HostKeyUnknown,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.e2e.site import until
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import failure, one_line


def test_a_changed_host_key(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[1].wrong_host_key()
    error = failure(fleet, "node1")
    assert isinstance(error, HostKeyChanged)
    assert error.exit_code == 4
    one_line(error, "node1: ", "has changed", f"ssh-keygen -f {lab3.known_hosts} -R {lab3[1].address}`")
    assert str(error).count("SHA256:") == 2


def test_strict_host_key_checking_no_changes_nothing(lab3: Lab, tmp_path: Path) -> None:
    lab3[1].wrong_host_key()
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n" + lab3.ssh_config.read_text())
    assert isinstance(failure(open_fleet(of_lab(lab3, ssh_config=str(config))), "node1"), HostKeyChanged)


def test_an_unknown_host_key(lab3: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("".join(line for line in lab3.known_hosts.read_text().splitlines(True) if "node2" not in line))
    config = tmp_path / "config"
    config.write_text(lab3.ssh_config.read_text().replace(str(lab3.known_hosts), "/dev/null"))
    error = failure(open_fleet(of_lab(lab3, ssh_config=str(config), known_hosts=str(known))), "node2")
    assert isinstance(error, HostKeyUnknown)
    one_line(error, "node2: ", "SHA256:", "ddpctl trust")


def test_the_known_type_of_key_is_asked_for(lab3: Lab, tmp_path: Path) -> None:
    """A host with several keys must show the known key."""
    host = lab3[2]
    host.run("rm -f /root/ecdsa*; ssh-keygen -q -t ecdsa -N '' -f /root/ecdsa")
    host.sshd_config("HostKey /root/ecdsa", "HostKey /etc/ssh/ssh_host_ed25519_key")
    ecdsa = " ".join(host.read("/root/ecdsa.pub").split()[:2])
    known = tmp_path / "known_hosts"
    known.write_text(f"@cert-authority *.example ssh-ed25519 AAAA\n{host.address} {ecdsa}\n")
    config = tmp_path / "config"
    config.write_text(lab3.ssh_config.read_text().replace(str(lab3.known_hosts), "none"))
    fleet = open_fleet(of_lab(lab3, ssh_config=str(config), known_hosts=str(known)), ["node2"])
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()


def test_a_refused_key(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].refuse_key()
    lab3[0].run("truncate -s 0 /run/sshd.log")
    error = failure(fleet, "node0")
    assert isinstance(error, AuthRefused)
    one_line(error, "node0: ", "root@", "id_ed25519", "ssh-copy-id")

    def lines() -> list[str]:
        return [line for line in lab3[0].read("/run/sshd.log").splitlines() if "authenticating user" in line]

    refused = until(lines)  # the server writes it once the client has gone
    assert len(refused) == 1, "a refused key is not tried again"


def test_no_key_at_all(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config = tmp_path / "config"
    config.write_text("")
    host = Host(name="x", address=lab3[0].address, user="root")
    error = failure(open_fleet(of_lab(lab3, host, ssh_config=str(config))), "x")
    assert isinstance(error, AuthRefused)
    one_line(error, "no key", "identity_file")


class Answers:
    """A person at the terminal."""

    def __init__(self, passphrase: str | None = None, password: str | None = None) -> None:
        self.asked: list[str] = []
        self._passphrase, self._password = passphrase, password

    def passphrase(self, path: str) -> str | None:
        self.asked.append(path)
        return self._passphrase

    def password(self, account: str, same_as: str) -> str | None:
        self.asked.append(f"{account} ({same_as})" if same_as else account)
        return "" if same_as else self._password

    def answer(self, question: str) -> str | None:
        raise AssertionError(f"an unexpected question: {question}")


def test_a_passphrase_is_asked_once(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    import subprocess

    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = tmp_path / "locked"
    shutil.copy(lab3.key, key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", key], check=True, stdout=subprocess.DEVNULL)
    hosts = [Host(name=f"h{n}", address=lab3[n].address, user="root", identity_file=str(key)) for n in range(3)]
    empty = tmp_path / "config"
    empty.write_text("")
    answers = Answers(passphrase="open sesame")
    fleet = open_fleet(of_lab(lab3, *hosts, ssh_config=str(empty)), prompter=answers)
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()
    assert answers.asked == [str(key)]
    for prompter in (None, Answers(passphrase="wrong")):
        fleet = open_fleet(of_lab(lab3, *hosts, ssh_config=str(empty)), prompter=prompter)
        errors = fleet.map(lambda transport: transport.call("echo")).errors
        fleet.close()
        assert len(errors) == 3
        one_line(errors["h0"], "wrong passphrase" if prompter else "ssh-add")


def test_a_password_is_asked_once_a_server(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for host in lab3.hosts[:2]:
        host.run("id guest || useradd --create-home --shell /bin/bash guest; echo 'guest:a b$c' | chpasswd")
        host.sshd_config("PasswordAuthentication yes")
    hosts = [Host(name=f"h{n}", address=lab3[n].address, user="guest") for n in range(2)]
    empty = tmp_path / "config"
    empty.write_text("")
    answers = Answers(password="a b$c")
    fleet = open_fleet(of_lab(lab3, *hosts, ssh_config=str(empty)), prompter=answers)
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert outcome.ok, outcome.errors
    first, second = answers.asked
    assert {first, second.partition(" ")[0]} == {f"guest@{host.address}" for host in lab3.hosts[:2]}
    assert second.endswith(f" ({first})"), "the second may be answered with Enter"
