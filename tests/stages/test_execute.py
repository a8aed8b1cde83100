"""A command on many hosts: for which users the password for sudo is read, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ddpctl.errors import RemoteError, Unreachable
from ddpctl.render.ran import output_lines
from ddpctl.spec.command import Ran
from ddpctl.stages.execute import Sudo, execute
from tests.transport.dry import DryFleet, DryTransport


def answers(probe: str, password: str | None = None) -> Callable[[Sequence[str], str | None], Ran]:
    """A host that says this of its login; with a password it takes no other."""

    def run(argv: Sequence[str], given: str | None) -> Ran:
        if argv[0] == "sh":
            return Ran(0, f"Welcome!\n{probe}\n")
        if given and given != password:
            raise RemoteError("sudo does not accept the password", kind="sudo_password")
        return Ran(0, "out\n")

    return run


def test_each_user_is_asked_once_and_only_where_sudo_asks() -> None:
    fleet = DryFleet(
        [
            DryTransport("node0", runs=answers("root")),
            DryTransport("node1", runs=answers("free")),
            DryTransport("node2", runs=answers("asks", "secret")),
            DryTransport("node3", runs=answers("asks", "secret")),
            DryTransport("node4", runs=answers("asks", "word"), user="other"),
            DryTransport("node5", runs=answers("none")),
        ]
    )
    asked: list[tuple[str, Sequence[str]]] = []
    typed = iter(["wrong", "secret", "word"])

    def ask(user: str, hosts: Sequence[str]) -> str:
        asked.append((user, hosts))
        return next(typed)

    outcome = execute(["id"], fleet.hosts, fleet, lambda event: None, timeout=5, sudo=Sudo(ask))
    assert asked == [("train", ["node2", "node3"])] * 2 + [("other", ["node4"])]
    assert set(outcome.results) == {"node0", "node1", "node2", "node3", "node4"}
    assert "sudo is not installed" in str(outcome.errors["node5"])
    last = {host: fleet.table[host].ran[-1][1] for host in outcome.results}
    assert last == {"node0": None, "node1": "", "node2": "secret", "node3": "secret", "node4": "word"}
    wrong = [given for _, given in fleet.table["node3"].ran if given == "wrong"]
    assert not wrong, "a wrong password is tried on one host only"


@pytest.mark.parametrize("typed", [None, "", "wrong"])
def test_without_the_password_nothing_runs(typed: str | None) -> None:
    fleet = DryFleet([DryTransport("node0", runs=answers("asks", "secret"))])
    with pytest.raises(RemoteError, match="train"):
        execute(["id"], fleet.hosts, fleet, lambda event: None, timeout=5, sudo=Sudo(lambda user, hosts: typed))
    assert ("id",) not in [argv for argv, _ in fleet.table["node0"].ran]


@pytest.mark.parametrize("claims", ["asks alice", "alice\nasks"])
def test_a_host_gets_the_password_of_no_other_login(claims: str) -> None:
    """Whatever it prints of itself."""
    good = DryTransport("good", runs=answers("asks", "secret"), user="alice")
    evil = DryTransport("evil", runs=answers(claims, "word"), user="svc")
    fleet = DryFleet([evil, good])
    typed = {"alice": "secret", "svc": "word"}
    execute(["id"], fleet.hosts, fleet, lambda event: None, timeout=5, sudo=Sudo(lambda user, hosts: typed[user]))
    assert "secret" not in [given for _, given in evil.ran]
    assert good.ran[-1] == (("id",), "secret")


def test_a_host_that_comes_later_is_asked_for_by_its_name() -> None:
    fleet = DryFleet([DryTransport(host, runs=answers("asks", "secret")) for host in ("node0", "node1")])
    asked: list[Sequence[str]] = []

    def ask(_: str, hosts: Sequence[str]) -> str:
        asked.append(hosts)
        return "secret"

    sudo = Sudo(ask)
    for hosts in (["node0"], ["node0", "node1"]):
        sudo.prepare(fleet, hosts)
    assert asked == [["node0"], ["node1"]]


def test_every_host_is_reported() -> None:
    gone = DryTransport("node1", unreachable=Unreachable("no answer", host="node1"))
    fleet = DryFleet([DryTransport("node0", runs=lambda argv, password: Ran(3)), gone])
    outcome = execute(["x"], fleet.hosts, fleet, lambda event: None, timeout=5)
    assert outcome.results == {"node0": Ran(3)}
    assert outcome.errors["node1"].exit_code == 4


def test_equal_outputs_are_shown_once() -> None:
    same, other = Ran(0, "a\nb\n", "oops\n"), Ran(1, "a\r\n\x1b[31mc")
    lines = list(output_lines({"node0": same, "node1": other, "node2": same, "node3": same, "node4": Ran(0)}))
    assert lines == [
        ("stdout", "node[0,2-3]: a"),
        ("stdout", "node[0,2-3]: b"),
        ("stderr", "node[0,2-3]: oops"),
        ("stdout", "node1: a"),
        ("stdout", "node1: \\x1b[31mc"),
    ]
