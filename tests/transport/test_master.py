"""Connections that OpenSSH holds: second factors, jump hosts, ControlMaster, host keys, lost connections, exec."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddpctl.errors import AuthRefused, HostKeyChanged, HostKeyUnknown, LinkLost, NameUnknown, Unreachable
from ddpctl.spec.inventory import Host
from ddpctl.stages.trust import survey
from ddpctl.transport import master
from ddpctl.transport.base import Frame
from ddpctl.transport.fleet import SSHFleet, open_fleet
from ddpctl_worker.wire import contract
from tests.e2e.site import until
from tests.lab import Host as LabHost
from tests.lab import Lab
from tests.transport.build import OnFifth, of_lab
from tests.transport.support import failure, one_line, workers_of_host

CODE = "ki$8 'x"


class Person:
    """Answers each question with the code."""

    def __init__(self, answer: str | None = CODE) -> None:
        self.asked: list[str] = []
        self.before: Callable[[], object] = lambda: None
        self._answer = answer

    def passphrase(self, path: str) -> str | None:
        raise AssertionError(f"a passphrase for {path}")

    def password(self, account: str, same_as: str) -> str | None:
        raise AssertionError(f"a password for {account}")

    def answer(self, question: str) -> str | None:
        self.asked.append(question)
        self.before()
        return self._answer


def by_openssh(lab: Lab, *names: str) -> tuple[Host, ...]:
    chosen = [host for host in lab.hosts if host.name in names]
    return tuple(Host(name=host.name, address=host.address, transport="openssh") for host in chosen)


def want_second_factor(*hosts: LabHost) -> None:
    """After the key the server wants a password: a second factor, as a code would be."""
    for host in hosts:
        host.run(f"printf '%s' \"root:{CODE.replace('$', chr(92) + '$')}\" | chpasswd")
        host.sshd_config(
            "AuthenticationMethods publickey,password", "PasswordAuthentication yes", "PermitRootLogin yes"
        )


@pytest.fixture
def carried(lab3: Lab) -> Iterator[SSHFleet]:
    fleet = open_fleet(of_lab(lab3, *by_openssh(lab3, "node0", "node1", "node2")))
    yield fleet
    fleet.close()


def echo(fleet: SSHFleet) -> dict[str, str]:
    outcome = fleet.map(lambda transport: transport.call("echo", {"text": transport.host}))
    assert outcome.ok, outcome.errors
    return {name: result["text"] for name, result in outcome.results.items()}


def test_every_host_answers_and_nothing_stays(lab3: Lab, carried: SSHFleet) -> None:
    assert echo(carried) == {name: name for name in ("node0", "node1", "node2")}
    assert echo(carried) == {name: name for name in ("node0", "node1", "node2")}  # over the same connections
    carried.close()
    until(lambda: not any(workers_of_host(host) for host in lab3))


def test_bytes_and_many_calls_at_once(carried: SSHFleet) -> None:
    """More calls than sshd's MaxSessions: they wait for each other."""
    got = 0

    def count(frame: Frame) -> None:
        nonlocal got
        got += len(frame.raw)

    node0 = carried.transport("node0")
    node0.call("echo", {"frames": 20, "raw": 1 << 20}, on_frame=count)
    assert got == 20 << 20
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda n: node0.call("echo", {"text": n})["text"], range(20))) == list(range(20))


def test_a_second_factor_is_asked_once_for_each_host(lab3: Lab) -> None:
    """ddpctl's own client begins; the server's wish for a second factor makes OpenSSH take over."""
    want_second_factor(lab3[0], lab3[1])
    person = Person()
    fleet = open_fleet(of_lab(lab3), prompter=person)
    try:
        echo(fleet)
        echo(fleet)
        assert fleet.transport("node0").run(["printf", "%s", "$HOME 'x'"]).stdout == "$HOME 'x'"
    finally:
        fleet.close()
    assert sorted(question.partition(":")[0] for question in person.asked) == ["node0", "node1"]
    assert all("password" in question for question in person.asked)


@pytest.mark.parametrize("person", [None, Person("wrong")], ids=["nobody", "wrong"])
def test_a_second_factor_without_the_right_answer(lab3: Lab, person: Person | None) -> None:
    want_second_factor(lab3[1])
    error = failure(open_fleet(of_lab(lab3), prompter=person), "node1")
    assert isinstance(error, AuthRefused)
    one_line(error, "node1: ", "refuses the login", "Permission denied", "try `ssh node1`")
    assert ("without a terminal" in str(error)) == (person is None)


def test_no_answer_is_no_empty_answer(lab3: Lab) -> None:
    """After Ctrl-D no other host asks, and no server counts a failed login."""
    want_second_factor(lab3[0], lab3[1])
    for host in lab3.hosts[:2]:
        host.run("truncate -s 0 /run/sshd.log")
    person = Person(None)
    fleet = open_fleet(of_lab(lab3), prompter=person)
    errors = fleet.map(lambda transport: transport.call("echo")).errors
    fleet.close()
    for name in ("node0", "node1"):
        assert isinstance(errors[name], AuthRefused)
        one_line(errors[name], f"{name}: ", "asked a question that was not answered")
    assert len(person.asked) == 1
    assert not any("Failed password" in host.read("/run/sshd.log") for host in lab3.hosts[:2])


def test_the_own_client_stays_where_the_inventory_says_so(lab3: Lab) -> None:
    want_second_factor(lab3[1])
    hosts = [Host(name=host.name, address=host.address, transport="paramiko") for host in lab3.hosts]
    error = failure(open_fleet(of_lab(lab3, *hosts), prompter=Person()), "node1")
    assert isinstance(error, AuthRefused)
    one_line(error, "node1: ", "also wants password", "remove `transport: paramiko`")


def test_a_jump_host_with_a_second_factor(lab3: Lab) -> None:
    """Two hosts behind it share one login there."""
    want_second_factor(lab3[0])
    person = Person()
    far = {"user": "root", "identity_file": str(lab3.key), "jump": "node0"}
    hosts = [Host(name=f"far{n}", address=lab3[n].address, **far) for n in (1, 2)]  # type: ignore[arg-type]
    gate = Host(name="node0", address=lab3[0].address)
    fleet = open_fleet(of_lab(lab3, gate, *hosts), ["far1", "far2"], prompter=person)
    try:
        assert echo(fleet) == {"far1": "far1", "far2": "far2"}
    finally:
        fleet.close()
    assert [question.partition(":")[0] for question in person.asked] == ["node0"]


def test_a_jump_host_that_refuses_is_asked_once(lab3: Lab) -> None:
    """A person does not answer again for each host behind it."""
    want_second_factor(lab3[0])
    person = Person("wrong")
    far = {"user": "root", "identity_file": str(lab3.key), "jump": "node0"}
    hosts = [Host(name=f"far{n}", address=lab3[n].address, **far) for n in (1, 2)]  # type: ignore[arg-type]
    gate = Host(name="node0", address=lab3[0].address)
    fleet = open_fleet(of_lab(lab3, gate, *hosts), ["far1", "far2"], prompter=person)
    errors = fleet.map(lambda transport: transport.call("echo")).errors
    fleet.close()
    for name in ("far1", "far2"):
        one_line(errors[name], f"{name}: ", "jump host node0: ", "refuses the login")
    assert len(person.asked) == 3, "ssh asks three times (NumberOfPasswordPrompts)"


def test_host_keys_behind_a_second_factor(lab3: Lab, tmp_path: Path) -> None:
    want_second_factor(lab3[0])
    known = tmp_path / "known_hosts"
    known.write_text(f"{lab3[0].address} {lab3[0].public_key()}\n")
    config = tmp_path / "config"
    config.write_text(lab3.ssh_config.read_text().replace(str(lab3.known_hosts), "none"))
    gate, far = (Host(name=f"node{n}", address=lab3[n].address, jump="node0" if n else None) for n in range(2))
    person = Person()
    inventory = of_lab(lab3, gate, far, ssh_config=str(config), known_hosts=str(known))
    found = {report.host: report for report in survey(inventory, prompter=person)}
    assert (found["node0"].state, found["node1"].state) == ("known", "unknown"), found
    assert base64.b64encode(found["node1"].blob).decode() in lab3[1].public_key()
    assert len(person.asked) == 1


def test_a_jump_host_without_a_shell(lab3: Lab) -> None:
    """Hardened jump hosts only forward."""
    want_second_factor(lab3[0])
    lab3[0].sshd_config("ForceCommand /bin/false")
    far = {"user": "root", "identity_file": str(lab3.key), "jump": "node0"}
    hosts = (Host(name="node0", address=lab3[0].address), Host(name="far", address=lab3[1].address, **far))  # type: ignore[arg-type]
    fleet = open_fleet(of_lab(lab3, *hosts), ["far"], prompter=Person())
    try:
        assert echo(fleet) == {"far": "far"}
    finally:
        fleet.close()


def test_what_the_server_says_comes_before_its_question(lab3: Lab) -> None:
    """Such as a code to type on another device."""
    want_second_factor(lab3[0])
    lab3[0].write("/etc/ssh/banner", "enter \x1b[31mABCD-1234 there\n")
    lab3[0].sshd_config("Banner /etc/ssh/banner")
    said: list[str] = []
    person = Person()
    person.before = lambda: said.append("asked")
    fleet = open_fleet(of_lab(lab3), ["node0"], prompter=person, say=said.append)
    echo(fleet)
    fleet.close()
    assert said.index("asked") > next(position for position, text in enumerate(said) if "ABCD-1234 there" in text)
    assert "\x1b" not in "".join(said)


def test_a_server_that_allows_a_single_session(lab3: Lab, carried: SSHFleet) -> None:
    lab3[0].sshd_config("MaxSessions 1")
    node0 = carried.transport("node0")
    with ThreadPoolExecutor(3) as pool:
        ran = list(pool.map(lambda n: node0.run(["sh", "-c", f"sleep 0.3; echo {n}"]), range(3)))
    assert [one.exit_code for one in ran] == [0, 0, 0], ran


def test_a_close_ends_logins_and_questions(lab3: Lab) -> None:
    """After the close nobody is asked, and no host is logged in to."""
    want_second_factor(*lab3.hosts)
    for host in lab3:
        host.run("truncate -s 0 /run/sshd.log")
    person = Person()
    asked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        go_on.wait(60)

    person.before = hold
    fleet = open_fleet(of_lab(lab3), prompter=person)
    work = threading.Thread(target=lambda: fleet.map(lambda transport: transport.call("echo")))
    work.start()
    assert asked.wait(60)
    fleet.close()
    go_on.set()
    work.join(60)
    assert not work.is_alive()
    assert len(person.asked) == 1
    assert not any("Accepted password" in host.read("/run/sshd.log") for host in lab3)


def test_the_users_own_control_master(lab3: Lab, tmp_path: Path) -> None:
    """A login that stands is used, so nobody is asked."""
    want_second_factor(lab3[0])
    control = tmp_path / "c"
    config = tmp_path / "config"
    config.write_text(f"Host node0\n  ControlPath {control}\n{lab3.ssh_config.read_text()}")
    inventory = of_lab(lab3, *by_openssh(lab3, "node0"), ssh_config=str(config))
    asking = tmp_path / "ask"
    asking.write_text(f"#!/bin/sh\ncat <<'E'\n{CODE}\nE\n")
    asking.chmod(0o700)
    target = ["-o", f"HostName={lab3[0].address}", "-l", "root", "node0"]
    own = subprocess.Popen(
        ["ssh", "-F", config, "-M", "-N", *target],
        env={"SSH_ASKPASS": str(asking), "SSH_ASKPASS_REQUIRE": "force", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not control.exists():
            assert time.monotonic() < deadline
            assert own.poll() is None
            time.sleep(0.05)
        fleet = open_fleet(inventory)
        assert echo(fleet) == {"node0": "node0"}
        fleet.close()
        assert own.poll() is None, "the user's connection stays"
    finally:
        own.kill()
        own.wait()


def test_a_control_socket_of_another_account_is_not_used(lab3: Lab, tmp_path: Path) -> None:
    """Its process would read the commands, and answer in the name of the host."""
    control, config = tmp_path / "c", tmp_path / "config"
    config.write_text(f"Host node0\n  ControlPath {control}\n{lab3.ssh_config.read_text()}")
    said: list[str] = []
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(control))
        foreign.listen()
        os.chown(control, 65534, 65534)
        fleet = open_fleet(of_lab(lab3, *by_openssh(lab3, "node0"), ssh_config=str(config)), say=said.append)
        assert echo(fleet) == {"node0": "node0"}
        fleet.close()
        foreign.setblocking(False)
        with pytest.raises(BlockingIOError):
            foreign.accept()
    assert said == [f"node0: the ControlPath {control} belongs to another account and is not used"]


def test_options_that_only_openssh_follows(lab3: Lab, tmp_path: Path) -> None:
    """With KnownHostsCommand the host is reached by OpenSSH, and the command decides about its key."""
    known = tmp_path / "known"
    known.write_text(lab3.known_hosts.read_text())
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  KnownHostsCommand /bin/cat {known}\n  UserKnownHostsFile none\n" + lab3.ssh_config.read_text()
    )
    said: list[str] = []
    fields = {"ssh_config": str(config), "known_hosts": "none"}
    fleet = open_fleet(of_lab(lab3, **fields), ["node0"], say=said.append)
    assert echo(fleet) == {"node0": "node0"}
    fleet.close()
    assert [text for text in said if not text.startswith("waiting for ")] == []
    known.write_text("")
    error = failure(open_fleet(of_lab(lab3, **fields), ["node0"]), "node0")
    assert isinstance(error, HostKeyUnknown)


def test_host_keys_are_as_strict(lab3: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n" + lab3.ssh_config.read_text())
    hosts = by_openssh(lab3, "node0", "node1")
    known = tmp_path / "known_hosts"
    known.write_text("".join(line for line in lab3.known_hosts.read_text().splitlines(True) if "node1" not in line))
    error = failure(open_fleet(of_lab(lab3, *hosts, ssh_config=str(config), known_hosts=str(known))), "node1")
    assert isinstance(error, HostKeyUnknown)
    one_line(error, "node1: ", "is not known", "ddpctl trust")
    lab3[1].wrong_host_key()
    error = failure(open_fleet(of_lab(lab3, *hosts, ssh_config=str(config))), "node1")
    assert isinstance(error, HostKeyChanged)
    assert "node1" not in known.read_text()


@pytest.mark.parametrize(
    ("address", "port", "kind", "words"),
    [
        ("no-such-name.invalid", 22, NameUnknown, "no address is known"),
        ("127.0.0.1", 9, Unreachable, "Connection refused"),
    ],
)
def test_a_host_that_is_not_there(lab3: Lab, address: str, port: int, kind: type[Exception], words: str) -> None:
    gone = Host(name="x", address=address, port=port, transport="openssh")
    error = failure(open_fleet(of_lab(lab3, *by_openssh(lab3, "node0"), gone)), "x")
    assert isinstance(error, kind)
    one_line(error, "x: ", words)


def end_connections(host: LabHost) -> None:
    """Kill the processes of sshd that serve a login."""
    for process in host.processes(system=True):
        if process.argv[0].startswith("sshd: root"):
            host.run(f"kill -9 {process.pid}", check=False)


def test_a_lost_connection_is_noticed_and_opened_again(
    lab3: Lab, carried: SSHFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("EXIT_CODE_S", "DYING_S"):
        monkeypatch.setattr(master, limit, 30.0)  # the processes of ssh may end late on a busy machine
    node1 = carried.transport("node1")
    with pytest.raises(LinkLost):
        node1.call("echo", {"frames": 1000, "every": 0.05}, on_frame=OnFifth(lambda: end_connections(lab3[1])))
    assert node1.call("echo", {"text": "again"})["text"] == "again"
    end_connections(lab3[1])  # between two calls
    assert node1.call("echo", {"text": "again"})["text"] == "again"


def test_a_silent_network_is_noticed(lab3: Lab, carried: SSHFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    node1 = carried.transport("node1")
    with monkeypatch.context() as patch:

        def drop() -> None:
            patch.setattr(contract, "LINK_DEAD_S", 7.0)
            lab3[1].drop()

        with pytest.raises(LinkLost):
            node1.call("echo", {"frames": 1000, "every": 0.05}, on_frame=OnFifth(drop))
    lab3[1].clear_firewall()
    assert node1.call("echo", {"text": "again"})["text"] == "again"


def test_exec(lab3: Lab, carried: SSHFleet) -> None:
    node0 = carried.transport("node0")
    ran = node0.run(["sh", "-c", "printf '%s|' \"$@\"; echo oops >&2; exit 7", "sh", "a b", "$x", "ü\n'"])
    assert (ran.exit_code, ran.stdout, ran.stderr) == (7, "a b|$x|ü\n'|", "oops\n")
    late = node0.run(["sleep", "300"], timeout=1)
    assert late.error is not None
    assert "did not end within 1 s" in late.error
    until(lambda: not [one for one in lab3[0].processes() if one.argv[:2] == ("sleep", "300")])
