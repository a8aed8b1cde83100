"""`ddpctl exec` on real hosts: the same command on every host, its output, and an end without leftover processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import until
from tests.lab import Host, Lab
from tests.lab.command import AtTerminal, Ddpctl

HOSTILE = [
    "a b",
    "it's",
    '"q"',
    "$HOME `id` $(id)",
    "\\n\\\\",
    "new\nline",
    "!x",
    "é\u202e",
    "",
    "*",
    "-n",
    "tab\t",
    "~",
    "--",
]


def inventory(lab: Lab, **keys: Any) -> Path:
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    entries = [{"name": host.name, "address": host.address} for host in lab]
    return lab.inventory(lab.folder / "exec.yaml", **ssh, **{"hosts": entries, **keys})


def running(host: Host, word: str) -> list[str]:
    """Processes with this word in their command line, but for the shell that looks."""
    return [line for line in host.run("ps -eo args").stdout.splitlines() if word in line and "ps -eo" not in line]


def test_what_three_hosts_print(lab: Lab, ddpctl: Ddpctl) -> None:
    where = str(inventory(lab))
    done = ddpctl("exec", where, "--", "echo", "same").ok()
    assert done.stdout == "node[0-2]: same\n"
    done = ddpctl("exec", where, "--host", "node[0-1]", "--", "hostname").ok()
    assert done.stdout == "node0: node0\nnode1: node1\n"
    line = 'echo "$(hostname) \x1b[31mred"; echo oops >&2; [ "$(hostname)" != node1 ] || exit 3'
    done = ddpctl("exec", where, "--", "sh", "-c", line)
    assert done.rc == 1
    assert done.stdout.splitlines()[0] == "node0: node0 \\x1b[31mred"
    assert "node[0-2]: oops" not in done.stdout
    assert "node1: exit code 3" in done.stderr
    document = ddpctl("exec", where, "--json", "--", "sh", "-c", line).json()
    assert (document["schema"], document["ok"]) == (1, False)
    assert [(one["host"], one["exit_code"], one["stderr"]) for one in document["hosts"]] == [
        ("node0", 0, "oops\n"),
        ("node1", 3, "oops\n"),
        ("node2", 0, "oops\n"),
    ]


def test_arguments_byte_for_byte_under_any_login_shell(lab: Lab, ddpctl: Ddpctl) -> None:
    where = str(inventory(lab))
    program = "import os, sys; sys.stdout.buffer.write(repr([os.fsencode(word) for word in sys.argv[1:]]).encode())"
    told = ddpctl("exec", where, "--json", "--", "/usr/bin/python3", "-c", program, *HOSTILE).ok().json()
    want = repr([word.encode() for word in HOSTILE])
    assert {one["stdout"] for one in told["hosts"]} == {want}


LONG = "yes | head -c 3000000; echo end"


@pytest.mark.heavy
@pytest.mark.full(covered_by="tests/e2e/test_exec.py::test_what_three_hosts_print")
def test_one_of_64_hosts(make_lab: Any, ddpctl: Ddpctl) -> None:
    lab = make_lab(64)
    line = 'echo fine; [ "$(hostname)" != node17 ] || exit 3'
    done = ddpctl("exec", str(inventory(lab)), "--", "sh", "-c", line, timeout=200)
    assert done.rc == 1
    assert done.stdout == "node[0-63]: fine\n", done.stderr
    assert "failed on 1 of 64 hosts: node17: exit code 3" in done.stderr
    told = ddpctl("exec", str(inventory(lab)), "--json", "--", "sh", "-c", line, timeout=200).json()
    failed = [one for one in told["hosts"] if one["exit_code"] != 0]
    assert [(one["host"], one["exit_code"]) for one in failed] == [("node17", 3)], failed


def test_output_is_bounded(lab: Lab, ddpctl: Ddpctl) -> None:
    told = ddpctl("exec", str(inventory(lab)), "--json", "--", "sh", "-c", LONG).ok().json()
    for one in told["hosts"]:
        assert one["stdout"].endswith("y\nend\n")
        assert len(one["stdout"]) < 1_100_000
        assert "earlier bytes were left out" in one["stdout"][:100]


STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 4711; sleep 4711' & timeout 4711 sleep 4711; sleep 4711"


def test_the_deadline_leaves_nothing(lab: Lab, ddpctl: Ddpctl) -> None:
    done = ddpctl("exec", str(inventory(lab)), "--timeout", "2", "--", "sh", "-c", STUBBORN)
    assert done.rc == 1
    assert "did not end within 2 s" in done.stderr
    until(lambda: not any(running(host, "4711") for host in lab), 10)


TWO_ARE_ENOUGH = pytest.mark.full(covered_by="tests/e2e/test_exec.py::test_a_signal_leaves_nothing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=TWO_ARE_ENOUGH)])
def test_a_signal_leaves_nothing(lab: Lab, ddpctl: Ddpctl, number: int) -> None:
    command = ddpctl.start("exec", str(inventory(lab)), "--", "sh", "-c", STUBBORN)
    until(lambda: all(running(host, "sleep 4711") for host in lab))
    command.signal(number)
    assert command.wait(20).rc == {signal.SIGINT: 130, signal.SIGTERM: -15, signal.SIGKILL: -9}[signal.Signals(number)]
    until(lambda: not any(running(host, "4711") for host in lab), 15)


def test_a_daemon_stays_and_what_holds_the_output_is_waited_for(lab: Lab, ddpctl: Ddpctl) -> None:
    line = "sleep 4712 >/dev/null 2>&1 & (sleep 2; echo late) & echo now"
    done = ddpctl("exec", str(inventory(lab)), "--", "sh", "-c", line).ok()
    assert done.stdout == "node[0-2]: now\nnode[0-2]: late\n"
    assert all(running(host, "sleep 4712") for host in lab)


def test_a_wrong_host_key_is_refused_here_too(lab: Lab, ddpctl: Ddpctl) -> None:
    lab[1].wrong_host_key()
    done = ddpctl("exec", str(inventory(lab)), "--", "touch", "/root/was-here")
    assert done.rc == 4
    assert "node1: the host key of" in done.stderr
    assert "has changed" in done.stderr
    assert [host.exists("/root/was-here") for host in list(lab)[:2]] == [True, False]
    told = ddpctl("exec", str(inventory(lab)), "--json", "--", "true").json()
    assert [(one["exit_code"], bool(one["error"])) for one in told["hosts"]] == [(0, False), (None, True), (0, False)]


@pytest.fixture
def sudoers(lab: Lab) -> Iterator[Lab]:
    """node0 and node1 want train's password, node2 does not."""
    for host in lab:
        host.add_user("train")
        host.run("chpasswd", stdin="train:secret\n")
        rule = "NOPASSWD: ALL" if host is lab[2] else "ALL"
        host.write("/etc/sudoers.d/train", f"train ALL=(ALL) {rule}\n", 0o440)
    yield lab
    for host in lab:
        host.run("rm -f /etc/sudoers.d/train; userdel --remove train")


def test_sudo_asks_once_a_user(sudoers: Lab, ddpctl: Ddpctl) -> None:
    where = str(inventory(sudoers, defaults={"user": "train"}))
    done = ddpctl("exec", where, "--sudo", "--host", "node2", "--", "id", "-un").ok()
    assert done.stdout == "node2: root\n"
    done = ddpctl("exec", where, "--sudo", "--", "id", "-un")
    assert done.rc == 1
    assert "no password was given" in done.stderr

    typing = ddpctl.start(
        "exec", where, "--sudo", "--json", "--", "sh", "-c", "cat /proc/*/cmdline; id -un", terminal=True
    )
    assert isinstance(typing, AtTerminal)
    typing.wait_for("password of train for sudo")
    typing.type("wrong\n")
    until(lambda: typing.stdout.count("password of train for sudo") == 2, 20)
    typing.type("secret\n")
    done = typing.wait()
    assert done.rc == 0, done.stdout
    assert done.stdout.count("root\\n") == 3
    assert "secret" not in done.stdout


def test_ctrl_c_ends_what_root_runs(sudoers: Lab, ddpctl: Ddpctl) -> None:
    where = str(inventory(sudoers, defaults={"user": "train"}))
    command = ddpctl.start("exec", where, "--sudo", "--", "sh", "-c", STUBBORN, terminal=True)
    assert isinstance(command, AtTerminal)
    command.wait_for("password of train for sudo")
    command.type("secret\n")
    until(lambda: all(running(host, "sleep 4711") for host in sudoers))
    command.type("\x03")
    assert command.wait(20).rc == 130
    until(lambda: not any(running(host, "4711") for host in sudoers), 15)
