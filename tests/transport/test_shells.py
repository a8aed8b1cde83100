"""Logins that lead nowhere: no python, a profile in the way, a base_dir that cannot be used."""

from __future__ import annotations

import pytest

from ddpctl.errors import (
    PythonMissing,
    RemoteError,
    ShellBroken,
)
from ddpctl.spec.inventory import Host
from ddpctl.transport import conversation
from ddpctl.transport.fleet import SSHFleet, open_fleet
from tests.lab import Lab
from tests.transport.build import of_lab
from tests.transport.support import failure, one_line


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


def test_a_profile_that_hangs(lab3: Lab, fleet: SSHFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    lab3[0].bashrc("sleep 1000")
    assert fleet.map(lambda transport: transport.call("echo"), ["node1", "node2"]).ok  # with the usual deadline
    monkeypatch.setattr(conversation, "BANNER_S", 6.0)
    error = failure(fleet, "node0")
    assert isinstance(error, ShellBroken)
    one_line(error, "node0: ", "does not answer within 6 s")


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
