"""A failure is one line: what, where, why, and what to do next."""

from __future__ import annotations

from ddpctl.errors import AuthRefused, DdpctlError, HostsFailed, InventoryError, NoSuchJob, Unreachable
from ddpctl.render.errors import error_lines
from ddpctl.render.groups import grouped
from ddpctl.spec.finding import Finding, Severity


def _refused(host: str) -> Unreachable:
    return Unreachable(f"{host} port 22: connection refused", hint="is sshd running there?", host=host)


def test_an_error_is_its_line() -> None:
    assert error_lines(NoSuchJob("no job 'x'", hint="look")) == ["no job 'x'; look"]


def test_one_host_of_several_is_in_the_same_line() -> None:
    error = HostsFailed("1 of 3 hosts did not answer", {"node1": _refused("node1")})
    assert error_lines(error) == [
        "1 of 3 hosts did not answer: node1: node1 port 22: connection refused; is sshd running there?"
    ]


def test_hosts_that_failed_alike_are_one_line() -> None:
    error = HostsFailed("2 of 3 hosts did not answer", {name: _refused(name) for name in ("node1", "node2")})
    assert len(error_lines(error)) == 1
    assert "node1,node2" in error_lines(error)[0]


def test_other_faults_are_listed_before_the_line_that_names_the_first() -> None:
    gone = Unreachable("no answer within 10 s", hint="is it on?", host="node2")
    *table, line = error_lines(HostsFailed("2 of 3 hosts did not answer", {"node1": _refused("node1"), "node2": gone}))
    assert line == (
        "2 of 3 hosts did not answer: node1: node1 port 22: connection refused; is sshd running there? (1 more above)"
    )
    assert table == [
        "  node1: node1 port 22: connection refused; is sshd running there?",
        "  node2: no answer within 10 s; is it on?",
    ]


def test_hosts_that_differ_by_name_and_address_alone_share_a_line() -> None:
    errors: dict[str, DdpctlError] = {
        f"node{n}": AuthRefused(f"root@10.0.0.{n} refuses", hint=f"run `ssh-copy-id root@10.0.0.{n}` for node{n}")
        for n in range(3)
    }
    (line,) = error_lines(HostsFailed("3 hosts failed", errors))
    commands = ", ".join(f"`ssh-copy-id root@10.0.0.{n}`" for n in range(3))
    assert line == f"3 hosts failed: node[0-2] (3 hosts): root@<address> refuses; run {commands} for the host"


def test_what_is_the_same_for_all_stays_as_it_is() -> None:
    errors: dict[str, DdpctlError] = {
        name: Unreachable("the jump host 10.0.0.9 is down") for name in ("node1", "node2")
    }
    assert error_lines(HostsFailed("2 failed", errors)) == [
        "2 failed: node1,node2 (2 hosts): the jump host 10.0.0.9 is down"
    ]


def test_all_faults_of_a_file_are_listed() -> None:
    error = InventoryError(
        "is not a known key", file="a.yaml", line=2, column=1, path="hots", hint="did you mean hosts?"
    )
    error.others = (InventoryError("is missing", file="a.yaml", line=1, column=1, path="hosts"),)
    *table, line = error_lines(error)
    assert line == "a.yaml:2:1: hots: is not a known key; did you mean hosts? (1 more above)"
    assert table == ["  a.yaml:2:1: hots: is not a known key; did you mean hosts?", "  a.yaml:1:1: hosts: is missing"]


def test_no_command_is_left_out() -> None:
    """Four hosts, one of them at another port: each has its command, in the line and among a preflight's fixes."""
    errors: dict[str, DdpctlError] = {
        f"n{n}": AuthRefused(f"root@10.0.0.{n}{':2201' * (n == 2)} refuses", hint=f"run `ssh-copy-id {port}10.0.0.{n}`")
        for n, port in enumerate(("", "", "-p 2201 ", ""))
    }
    commands = ", ".join(f"`ssh-copy-id {'-p 2201 ' * (n == 2)}10.0.0.{n}`" for n in range(4))
    assert error_lines(HostsFailed("4 failed", errors)) == [
        f"4 failed: n[0-3] (4 hosts): root@<address> refuses; run {commands}"
    ]
    findings = [
        Finding("ssh.auth", Severity.ERROR, "refused", host=host, fix=error.hint) for host, error in errors.items()
    ]
    assert grouped(findings)[0].fixes == (f"run {commands}",)


def test_a_name_within_another_name_stays_whole() -> None:
    errors: dict[str, DdpctlError] = {
        name: Unreachable(f"{name} reaches no other node: n10 is down") for name in ("n1", "n2")
    }
    assert error_lines(HostsFailed("2 failed", errors)) == [
        "2 failed: n1,n2 (2 hosts): the host reaches no other node: n10 is down",
    ]
