"""SSH against real sshds: every way to be refused, lost or kept waiting, and the protocol over it."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddpctl.errors import (
    AuthRefused,
    ConnectError,
    DdpctlError,
    HostKeyChanged,
    HostKeyUnknown,
    Interrupted,
    LinkLost,
    NameUnknown,
    PythonMissing,
    RemoteError,
    ShellBroken,
    Unreachable,
)
from ddpctl.spec.command import Command
from ddpctl.spec.inventory import Host
from ddpctl.transport.base import Frame, Transport
from ddpctl.transport.fleet import SSHFleet, open_fleet
from ddpctl.transport.payload import payload
from tests.lab import Lab
from tests.transport.build import OnFifth, of_lab

BASE = "~/.local/state/ddpctl"


@pytest.fixture
def fleet(lab3: Lab) -> Iterator[SSHFleet]:
    fleet = open_fleet(of_lab(lab3))
    yield fleet
    fleet.close()


@pytest.fixture
def node0(fleet: SSHFleet) -> Transport:
    return fleet.transport("node0")


def failure(fleet: SSHFleet, host: str) -> DdpctlError:
    """The error of one host; every other one has answered."""
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert set(outcome.results) == set(fleet.hosts) - {host}
    return outcome.errors[host]


def one_line(error: DdpctlError, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    for word in words:
        assert word in text, text


# --- it works ---


def test_plain_command(node0: Transport) -> None:
    command = Command(("sh", "-c", 'cat; echo "$A" >&2; exit 3'), env={"A": "b c; $(id)"})
    result = node0.run(command, stdin=b"in\0put")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"in\0put", b"b c; $(id)\n")


def test_a_command_that_reads_no_stdin(node0: Transport) -> None:
    assert node0.run(Command(("true",)), stdin=b"x" * 5_000_000).ok


def test_a_killed_command_has_no_status(node0: Transport) -> None:
    assert node0.run(Command(("sh", "-c", "kill -9 $$"))).exit_code in (-1, 137)


def test_every_host_answers(fleet: SSHFleet) -> None:
    outcome = fleet.map(lambda transport: transport.call("echo", {"text": transport.host}))
    assert {name: result["text"] for name, result in outcome.results.items()} == {name: name for name in fleet.hosts}


def test_body_and_frames_at_once(node0: Transport) -> None:
    """More than any window, both ways at the same time."""
    body = [bytes([number]) * (1 << 20) for number in range(24)]
    frames: list[Frame] = []
    result = node0.call(
        "echo", {"size": 24 << 20, "frames": 24, "raw": 1 << 20}, body=iter(body), on_frame=frames.append
    )
    assert result["sha256"] == hashlib.sha256(b"".join(body)).hexdigest()
    assert [frame.data["n"] for frame in frames] == list(range(24))
    assert all(len(frame.raw) == 1 << 20 for frame in frames)


def test_hundred_megabytes(node0: Transport) -> None:
    got = 0

    def count(frame: Frame) -> None:
        nonlocal got
        got += len(frame.raw)

    begun = time.monotonic()
    node0.call("echo", {"frames": 100, "raw": 1 << 20}, on_frame=count)
    assert got == 100 << 20
    assert time.monotonic() - begun < 10  # measured: 0.3 s; a slow path (fabric's) needs two minutes


def test_an_error_of_the_worker(node0: Transport) -> None:
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"fail": "no_space"})
    assert (caught.value.kind, caught.value.host) == ("no_space", "node0")


def test_a_body_that_cannot_be_read(node0: Transport) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 100
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        node0.call("echo", {"size": 1000}, body=broken())


def test_twenty_calls_on_one_host(node0: Transport) -> None:
    """More than sshd's MaxSessions: they wait for each other."""
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda n: node0.call("echo", {"text": n})["text"], range(20))) == list(range(20))


def test_a_server_that_allows_two_sessions(lab3: Lab, node0: Transport) -> None:
    lab3[0].sshd_config("MaxSessions 2")
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: node0.call("echo", {"text": n, "frames": 1, "every": 0.1})["text"], range(8))
        assert list(answers) == list(range(8))


def test_the_worker_is_sent_once(lab3: Lab) -> None:
    lab3[1].run("rm -rf /root/.local/state/ddpctl")
    folder = f"/root/.local/state/ddpctl/worker/{payload().sha256}"
    stamps = []
    for _ in range(2):
        fleet = open_fleet(of_lab(lab3), ["node1"])
        assert fleet.map(lambda transport: transport.call("echo")).ok
        fleet.close()
        stamps.append(lab3[1].run(f"stat -c '%i %a %U' {folder}; ls -A {folder}/..").stdout)
    assert stamps[0] == stamps[1]
    assert stamps[0].split() == [stamps[0].split()[0], "700", "root", payload().sha256]
    assert "__main__.cpython" in lab3[1].run(f"ls {folder}/ddpctl_worker/__pycache__").stdout


def test_many_controllers_at_once(lab3: Lab) -> None:
    lab3[1].run("rm -rf /root/.local/state/ddpctl")
    fleets = [open_fleet(of_lab(lab3), ["node1"]) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda fleet: fleet.map(lambda transport: transport.call("echo")), fleets))
    for fleet in fleets:
        fleet.close()
    assert all(outcome.ok for outcome in outcomes), [outcome.errors for outcome in outcomes]
    assert lab3[1].run("ls -A /root/.local/state/ddpctl/worker").stdout.split() == [payload().sha256]


def test_cancel(lab3: Lab, node0: Transport) -> None:
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        node0.call("echo", {"frames": 100, "every": 1}, timeout=None, cancel=lambda: time.monotonic() - begun > 0.5)
    assert time.monotonic() - begun < 3
    until = time.monotonic() + 5
    while any("ddpctl=" in " ".join(process.argv) for process in lab3[0].processes()):
        assert time.monotonic() < until, "the worker outlives its reader"
        time.sleep(0.05)
    assert node0.call("echo", {"text": 1})["text"] == 1  # the connection lives on


def test_a_quiet_stream_is_not_a_dead_link(node0: Transport) -> None:
    assert node0.call("echo", {"frames": 1, "every": 18}, timeout=None)["sent"] == 1


def test_timeout_of_a_call(node0: Transport) -> None:
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"frames": 100, "every": 1}, timeout=1)
    assert caught.value.kind == "timeout"


def test_ctrl_c_ends_a_map_at_once(lab3: Lab) -> None:
    fleet = open_fleet(of_lab(lab3))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fleet.map(lambda transport: transport.call("echo", {"frames": 60, "every": 1}))
    assert time.monotonic() - begun < 6
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()


# --- host keys ---


def test_a_changed_host_key(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[1].wrong_host_key()
    error = failure(fleet, "node1")
    assert isinstance(error, HostKeyChanged)
    assert error.exit_code == 4
    one_line(error, "node1: ", "has changed", "ssh-keygen -R")
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
    """A host with several keys must show the one that is known."""
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


# --- logins ---


def test_a_refused_key(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].refuse_key()
    lab3[0].run("truncate -s 0 /run/sshd.log")
    error = failure(fleet, "node0")
    assert isinstance(error, AuthRefused)
    one_line(error, "node0: ", "root@", "id_ed25519", "ssh-copy-id")
    refused = [line for line in lab3[0].read("/run/sshd.log").splitlines() if "authenticating user" in line]
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

    def password(self, user: str, hosts: object) -> str | None:
        self.asked.append(f"{user}: {hosts}")
        return self._password


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


def test_a_password_is_asked_once(lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert answers.asked == ["guest: ('h0', 'h1')"]


# --- hosts that cannot be reached ---


def reach(lab: Lab, tmp_path: Path, address: str, port: int = 22) -> tuple[ConnectError, float]:
    """The error of a host at that address beside a healthy one, and how long it took."""
    healthy = Host(name="node0", address=lab[0].address)
    fleet = open_fleet(of_lab(lab, healthy, Host(name="x", address=address, port=port)))
    begun = time.monotonic()
    error = failure(fleet, "x")
    assert isinstance(error, ConnectError)
    assert error.exit_code == 4
    return error, time.monotonic() - begun


def test_a_name_without_address(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, "no-such-host.invalid")
    assert isinstance(error, NameUnknown)
    one_line(error, "x: ", "no-such-host.invalid", "address:")
    assert took < 15


def test_a_refused_port(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, lab3[1].address, 2222)
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", f"{lab3[1].address}:2222", "refuses", "sshd")
    assert took < 5


def test_a_dropped_port(lab3: Lab, tmp_path: Path) -> None:
    lab3[1].drop(port=22)
    error, took = reach(lab3, tmp_path, lab3[1].address)
    assert isinstance(error, Unreachable)
    one_line(error, "no answer", "firewall")
    assert 8 < took < 15


def test_no_such_machine(lab3: Lab, tmp_path: Path) -> None:
    error, took = reach(lab3, tmp_path, lab3[0].address.rsplit(".", 1)[0] + ".250")
    assert isinstance(error, Unreachable)
    assert took < 15


def test_a_silent_sshd(lab3: Lab, tmp_path: Path) -> None:
    lab3[1].silent_sshd()
    error, took = reach(lab3, tmp_path, lab3[1].address)
    assert isinstance(error, Unreachable)
    one_line(error, "x: ", "says nothing")
    assert 8 < took < 15


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n"])
def test_a_server_that_hangs_up(greeting: bytes, lab3: Lab, tmp_path: Path) -> None:
    """Tried again, four times in all, and then given up."""
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            nonlocal accepted
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                accepted += 1
                connection.sendall(greeting)
                connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        error, _ = reach(lab3, tmp_path, "127.0.0.1", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, Unreachable)
    one_line(error, "hung up 4 times", "MaxStartups", greeting.decode().strip())
    assert accepted == 4


def test_max_startups(lab3: Lab) -> None:
    """A server that drops logins at random: all hosts of the inventory come through, for each is tried again."""
    lab3[1].sshd_config("MaxStartups 3:40:8")
    hosts = [Host(name=f"h{n}", address=lab3[1].address) for n in range(16)]
    config = {"ssh_config": str(lab3.ssh_config)}
    text = lab3.ssh_config.read_text().replace("Host node*", "Host *")
    (lab3.folder / "all").write_text(text)
    config["ssh_config"] = str(lab3.folder / "all")
    fleet = open_fleet(of_lab(lab3, *hosts, **config))
    outcome = fleet.map(lambda transport: transport.call("echo"))
    fleet.close()
    assert outcome.ok, {name: str(error) for name, error in outcome.errors.items()}


# --- a login that leads nowhere ---


def test_no_python(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].without_python()
    error = failure(fleet, "node0")
    assert isinstance(error, PythonMissing)
    assert error.exit_code == 3
    one_line(error, "node0: ", "python3", "`python:`")


def test_python_elsewhere(lab3: Lab) -> None:
    host = lab3[0]
    host.run("mkdir -p '/root/a b' && ln -sf /usr/bin/python3 \"/root/a b/it's \\$py\"")
    for python, good in (
        ("~/a b/it's $py", True),
        ("/root/a b/it's $py", True),
        ("/no/such/python", False),
        ("/etc", False),
    ):
        fleet = open_fleet(of_lab(lab3, Host(name="node0", address=host.address, python=python)))
        if good:
            assert fleet.map(lambda transport: transport.call("echo")).ok
            fleet.close()
        else:
            error = failure(fleet, "node0")
            assert isinstance(error, PythonMissing)
            one_line(error, python)


def test_a_chatty_profile(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].bashrc("echo 'DDPCTL/1 welcome have'; yes hello | head -c 500000; printf 'no end of line'; echo oops >&2")
    assert fleet.map(lambda transport: transport.call("echo")).ok


def test_a_profile_that_never_stops_talking(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].bashrc("yes hello")
    error = failure(fleet, "node0")
    assert isinstance(error, ShellBroken)
    one_line(error, "node0: ", "1 MiB", "bashrc")


def test_a_profile_that_exits(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].bashrc("echo 'closed for maintenance'; exit 7")
    error = failure(fleet, "node0")
    assert isinstance(error, ShellBroken)
    assert error.exit_code == 4
    one_line(error, "node0: ", "exit status 7", "closed for maintenance", "bashrc")


def test_an_account_without_shell(lab3: Lab) -> None:
    lab3[0].run(
        "id nobody2 || (useradd --create-home --shell /usr/sbin/nologin nobody2; cp -r /root/.ssh ~nobody2/; "
        "chown -R nobody2: ~nobody2/.ssh; usermod -p '*' nobody2)"
    )
    error = failure(open_fleet(of_lab(lab3, Host(name="node0", address=lab3[0].address, user="nobody2"))), "node0")
    assert isinstance(error, ShellBroken)
    one_line(error, "This account is currently not available")


def test_a_profile_that_hangs(lab3: Lab, fleet: SSHFleet) -> None:
    lab3[0].bashrc("sleep 1000")
    begun = time.monotonic()
    error = failure(fleet, "node0")
    assert isinstance(error, ShellBroken)
    one_line(error, "node0: ", "does not answer")
    assert time.monotonic() - begun < 30


# --- a base_dir that cannot be used ---


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        ("mkdir -p /mnt/b && mount -t tmpfs -o ro tmpfs /mnt/b", "unwritable"),
        ("mkdir -p /mnt/b && mount -t tmpfs -o size=16k tmpfs /mnt/b", "no_space"),
        ("mkdir -p /mnt/b /mnt/real && ln -s /mnt/real /mnt/b/d", "unsafe_path"),
        ("mkdir -p /mnt/b/d/worker && chown 12345 /mnt/b/d/worker", "unsafe_path"),
        ("mkdir -p /mnt/b/d && chmod 777 /mnt/b/d", "unsafe_path"),
        ("mkdir -p /mnt/b && touch /mnt/b/d", "unsafe_path"),
    ],
)
def test_a_bad_base_dir(prepare: str, kind: str, lab3: Lab) -> None:
    lab3[0].run(prepare)
    try:
        fleet = open_fleet(of_lab(lab3, Host(name="node0", address=lab3[0].address, base_dir="/mnt/b/d")))
        error = failure(fleet, "node0")
        assert isinstance(error, RemoteError)
        assert error.kind == kind, str(error)
        one_line(error, "node0: ", "/mnt/b", "base_dir")
        left = lab3[0].run("ls -A /mnt/b/d/worker 2>/dev/null", check=False).stdout.split()
        assert left == [], "nothing half-written is left"
    finally:
        lab3[0].run("umount -l /mnt/b; rm -rf /mnt/b /mnt/real", check=False)


def test_a_noexec_base_dir_will_do(lab3: Lab) -> None:
    lab3[0].small_tmpfs("/mnt/noexec", "4m", "noexec")
    fleet = open_fleet(of_lab(lab3, Host(name="node0", address=lab3[0].address, base_dir="/mnt/noexec/d")))
    assert fleet.map(lambda transport: transport.call("echo")).ok
    fleet.close()


# --- links that die ---


def test_a_link_cut_in_mid_call(lab3: Lab, node0: Transport) -> None:
    hurt = OnFifth(lambda: lab3[0].cable(False))
    with pytest.raises(LinkLost) as caught:
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert hurt.since < 16
    one_line(caught.value, "node0: ")


def test_a_link_cut_while_sending(lab3: Lab, node0: Transport) -> None:
    def body() -> Iterator[bytes]:
        for number in range(400):
            if number == 20:
                lab3[0].cable(False)
            yield b"x" * (1 << 20)

    begun = time.monotonic()
    with pytest.raises(LinkLost):
        node0.call("echo", {"size": 400 << 20}, body=body(), timeout=None)
    assert time.monotonic() - begun < 20


def test_a_frozen_machine(lab3: Lab, node0: Transport) -> None:
    """Its kernel still answers TCP; only the missing heartbeat shows it."""
    hurt = OnFifth(lab3[0].freeze)
    with pytest.raises(LinkLost):
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert hurt.since < 18


def test_a_connection_that_died_while_idle(lab3: Lab, node0: Transport) -> None:
    assert node0.call("echo", {"text": 1})["text"] == 1
    lab3[0].reboot()
    assert node0.call("echo", {"text": 2})["text"] == 2


def test_an_sshd_that_ends_the_session(lab3: Lab, node0: Transport) -> None:
    def kill() -> None:
        for process in lab3[0].processes(system=True):
            if process.argv[0].startswith("sshd: root"):
                lab3[0].run(f"kill -9 {process.pid}", check=False)

    hurt = OnFifth(kill)
    with pytest.raises(LinkLost):
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)


def test_a_worker_that_is_killed(lab3: Lab, node0: Transport) -> None:
    def kill() -> None:
        for process in lab3[0].processes():
            if "ddpctl=" in " ".join(process.argv) and process.argv[0].endswith("python3"):
                lab3[0].run(f"kill -9 {process.pid}")

    hurt = OnFifth(kill)
    with pytest.raises(RemoteError) as caught:
        node0.call("echo", {"frames": 600, "every": 0.1}, on_frame=hurt, timeout=None)
    assert caught.value.kind == "died"
    assert node0.call("echo", {"text": 2})["text"] == 2
