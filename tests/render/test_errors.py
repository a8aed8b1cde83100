"""A failure is an `error:` line (the fault, its place, its reason) and a `hint:` line (the next step)."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from ddpctl.errors import (
    AuthRefused,
    DdpctlError,
    HostsFailed,
    Interrupted,
    InventoryError,
    NoSuchJob,
    Unreachable,
    is_interrupt,
)
from ddpctl.render.errors import error_lines
from ddpctl.render.groups import group_findings
from ddpctl.spec.finding import Finding, Severity


def _refused(host: str) -> Unreachable:
    return Unreachable(f"{host} port 22: connection refused", hint="is sshd running there?", host=host)


def test_the_error_and_the_hint_are_lines_of_their_own() -> None:
    assert error_lines(NoSuchJob("no job 'x'", hint="look")) == ["error: no job 'x'", "hint: look"]
    assert error_lines(NoSuchJob("no job 'x'")) == ["error: no job 'x'"]


def test_an_interrupt_is_no_error() -> None:
    error = Interrupted("detached: train is still running", hint="ddpctl attach train")
    assert error_lines(error) == ["detached: train is still running", "hint: ddpctl attach train"]


def test_a_wrong_value_that_holds_the_name_of_the_interrupt_is_no_interrupt() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(int).validate_python("KeyboardInterrupt")
    assert not is_interrupt(refused.value)


def test_a_name_in_another_name_is_not_the_host() -> None:
    errors: dict[str, DdpctlError] = {
        "node1": Unreachable("the jump host node10 is down"),
        "node2": Unreachable("the jump host node10 is down"),
        "node": Unreachable("no answer from node.example.org"),
    }
    text = "\n".join(error_lines(HostsFailed("3 failed", errors)))
    assert "node1,node2 (2 hosts): the jump host node10 is down" in text


def test_one_host_of_several_is_in_the_same_line() -> None:
    error = HostsFailed("1 of 3 hosts did not answer", {"node1": _refused("node1")})
    assert error_lines(error) == [
        "error: 1 of 3 hosts did not answer: node1: node1 port 22: connection refused",
        "hint: is sshd running there?",
    ]


def test_hosts_that_failed_alike_are_one_line() -> None:
    error = HostsFailed("2 of 3 hosts did not answer", {name: _refused(name) for name in ("node1", "node2")})
    line, hint = error_lines(error)
    assert "node1,node2" in line
    assert hint == "hint: is sshd running there?"


def test_other_faults_are_listed_before_the_line_that_names_the_first() -> None:
    gone = Unreachable("no answer within 10 s", hint="is it on?", host="node2")
    error = HostsFailed("2 of 3 hosts did not answer", {"node1": _refused("node1"), "node2": gone})
    *table, line, hint = error_lines(error)
    assert line == "error: 2 of 3 hosts did not answer: node1: node1 port 22: connection refused (1 more above)"
    assert hint == "hint: is sshd running there?"
    assert table == [
        "  node1: node1 port 22: connection refused; is sshd running there?",
        "  node2: no answer within 10 s; is it on?",
    ]


def test_hosts_that_differ_by_name_and_address_alone_share_a_line() -> None:
    errors: dict[str, DdpctlError] = {
        f"node{n}": AuthRefused(f"root@10.0.0.{n} refuses", hint=f"run `ssh-copy-id root@10.0.0.{n}` for node{n}")
        for n in range(3)
    }
    line, hint = error_lines(HostsFailed("3 hosts failed", errors))
    commands = ", ".join(f"`ssh-copy-id root@10.0.0.{n}`" for n in range(3))
    assert line == "error: 3 hosts failed: node[0-2] (3 hosts): root@<address> refuses"
    assert hint == f"hint: run {commands} for the host"


def test_what_is_the_same_for_all_stays_as_it_is() -> None:
    errors: dict[str, DdpctlError] = {
        name: Unreachable("the jump host 10.0.0.9 is down") for name in ("node1", "node2")
    }
    assert error_lines(HostsFailed("2 failed", errors)) == [
        "error: 2 failed: node1,node2 (2 hosts): the jump host 10.0.0.9 is down"
    ]


def test_all_faults_of_a_file_are_listed() -> None:
    error = InventoryError(
        "is not a known key", file="a.yaml", line=2, column=1, path="hots", hint="did you mean hosts?"
    )
    error.further = (InventoryError("is missing", file="a.yaml", line=1, column=1, path="hosts"),)
    *table, line, hint = error_lines(error)
    assert line == "error: a.yaml:2:1: hots: is not a known key (1 more above)"
    assert hint == "hint: did you mean hosts?"
    assert table == ["  a.yaml:2:1: hots: is not a known key; did you mean hosts?", "  a.yaml:1:1: hosts: is missing"]


def test_no_command_is_left_out() -> None:
    """Of four hosts, n2 has another port: the line and a preflight's fixes have the command of each host."""
    errors: dict[str, DdpctlError] = {
        f"n{n}": AuthRefused(f"root@10.0.0.{n}{':2201' * (n == 2)} refuses", hint=f"run `ssh-copy-id {port}10.0.0.{n}`")
        for n, port in enumerate(("", "", "-p 2201 ", ""))
    }
    commands = ", ".join(f"`ssh-copy-id {'-p 2201 ' * (n == 2)}10.0.0.{n}`" for n in range(4))
    assert error_lines(HostsFailed("4 failed", errors)) == [
        "error: 4 failed: n[0-3] (4 hosts): root@<address> refuses",
        f"hint: run {commands}",
    ]
    findings = [
        Finding("ssh.auth", Severity.ERROR, "refused", host=host, fix=error.hint) for host, error in errors.items()
    ]
    assert group_findings(findings)[0].fixes == (f"run {commands}",)


def test_a_name_within_another_name_stays_whole() -> None:
    errors: dict[str, DdpctlError] = {
        name: Unreachable(f"{name} reaches no other node: n10 is down") for name in ("n1", "n2")
    }
    assert error_lines(HostsFailed("2 failed", errors)) == [
        "error: 2 failed: n1,n2 (2 hosts): the host reaches no other node: n10 is down",
    ]
