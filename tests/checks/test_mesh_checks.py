"""Verdicts on a mesh that need no lab: the differences by backend, by permission, and by the number of nodes."""

from __future__ import annotations

from typing import Any

from ddpctl.checks.base import Requirements, Target, View
from ddpctl.checks.deep import REHEARSAL
from ddpctl.checks.mesh.ports import judge_ports
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Dial, Fabric, Mesh
from ddpctl.spec.question import Answer

PORT, SAMPLE = 29500, 40000
CLEAN = {"uid": 0, "iptables": ""}


def view(count: int, broken: dict[tuple[int, int], str], *, port: int = SAMPLE, gpus: int = 0, **keys: Any) -> View:
    """``count`` nodes; ``broken``: (dialer, peer) -> status of the single port of each."""
    hosts = tuple(f"n{i}" for i in range(count))
    fabric = {host: Fabric(f"10.0.0.{i + 1}", "eth0") for i, host in enumerate(hosts)}
    dials = tuple(
        Dial(a, b, fabric[b].address, port, broken.get((i, j), "ok"), local=fabric[a].address, interface="eth0")
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j
    )
    roles = {host: {port: "master" if port == PORT else "sample"} for host in hosts}
    mesh = Mesh(hosts=hosts, master="n0", master_port=PORT, fabric=fabric, dials=dials, ports=roles)
    targets = tuple(Target(host, "10.0.0.1", "python3", "~") for host in hosts)
    answers = {host: {"network": Answer(True, {"gpus": gpus, "addresses": []})} for host in hosts}
    firewalls = dict.fromkeys(hosts, CLEAN)
    return View(targets, Requirements(master="n0"), answers, mesh=mesh, **{"firewalls": firewalls, **keys})


def told(view: View) -> list[tuple[str, str | None, str | None]]:
    return [(f.severity.value, f.host, f.peer) for f in judge_ports(view) if f.severity is not Severity.OK]


def test_closed_ports_of_the_highest_address_by_backend() -> None:
    broken = {(0, 2): "dropped", (1, 2): "dropped"}
    assert told(view(3, broken)) == [("info", "n2", None)]
    assert told(view(3, broken, gpus=8)) == [("error", "n2", None)]


def test_master_port_of_a_node_that_is_not_the_master_does_not_matter() -> None:
    assert told(view(3, {(0, 1): "refused"}, port=PORT)) == []
    assert told(view(3, {(1, 0): "refused"}, port=PORT)) == [("error", "n0", "n1")]


def test_node_from_which_nothing_gets_out() -> None:
    broken = {(2, 0): "dropped", (2, 1): "dropped"}
    assert told(view(3, broken)) == [("error", "n2", None)]


def test_many_nodes_kept_apart_are_one_finding() -> None:
    broken = {(i, j): "dropped" for i in range(6) for j in range(6) if i != j}
    (found,) = judge_ports(view(6, broken))
    assert (found.severity, found.host) == (Severity.ERROR, None)
    assert "25 of 30 links among n[0-5]" in found.message
    assert "security group" in str(found.fix)
    (hidden,) = judge_ports(view(6, broken, firewalls={f"n{i}": {"uid": 1000} for i in range(6)}))
    assert "only be read by root" in hidden.message


def rehearsal(**hosts: dict[str, Any]) -> list[Finding]:
    targets = tuple(Target(host, "10.0.0.1", "python3", "~") for host in hosts)
    return list(REHEARSAL.judge(View(targets, Requirements(), {}, rehearsal=hosts)))


def rank(number: int, **report: Any) -> dict[str, Any]:
    return {"phase": "init_process_group", "report": {"rank": number, "ok": False, "error": None, **report}}


def test_failure_is_blamed_on_who_failed_and_not_on_who_waited() -> None:
    waited = rank(0, error="RuntimeError: Connection closed by peer [10.0.0.2]:1")
    failed = rank(1, error="RuntimeError: CUDA error: no kernel image is available")
    (found,) = rehearsal(
        n0={"expected": [0], "ranks": {"0": waited}, "seconds": 9.0, "exit_code": 1, "tail": []},
        n1={"expected": [1], "ranks": {"1": failed}, "seconds": 9.0, "exit_code": 1, "tail": []},
    )
    assert found.host == "n1"
    assert "no kernel image" in found.message
    assert "n0" in found.message


def test_rank_whose_store_went_away_only_waited() -> None:
    """The master's rank gave up first, and took the store with it."""
    lost = "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?"
    ended: dict[str, Any] = {"seconds": 36.0, "exit_code": 1, "met": True, "tail": []}
    (found,) = rehearsal(
        n0={"expected": [0], "ranks": {"0": rank(0, error="DistStoreError: wait timeout after 30000ms")}, **ended},
        n1={"expected": [1], "ranks": {}, "seconds": 56.0, "timed_out": True, "met": True, "tail": []},
        n2={"expected": [2], "ranks": {"2": rank(2, error=lost)}, **ended},
    )
    assert found.host == "n1"
    assert "2 ranks on n0,n2 waited" in found.message


def test_stuck_launcher_is_told_from_those_that_wait_for_it() -> None:
    nothing: dict[str, Any] = {"ranks": {}, "seconds": 60.0, "exit_code": None, "timed_out": True, "tail": []}
    (found,) = rehearsal(
        n0={"expected": [0, 1], "met": True, **nothing}, n1={"expected": [2, 3], "met": False, **nothing}
    )
    assert found.host == "n1"
    assert "ranks 2, 3 stuck" in found.message


def test_launcher_that_lost_the_master_when_time_was_up_is_not_to_blame() -> None:
    nothing: dict[str, Any] = {"ranks": {}, "tail": []}
    stuck: dict[str, Any] = {"exit_code": None, "timed_out": True, **nothing}
    (found,) = rehearsal(
        n0={"expected": [0], "seconds": 60.0, "met": True, **stuck},
        n1={"expected": [1], "seconds": 60.5, "met": False, **stuck},
        n2={"expected": [2], "seconds": 60.1, "met": True, "exit_code": 1, "timed_out": False, **nothing},
    )
    assert found.host == "n1"
    assert "never joined" in found.message


def test_launcher_that_ends_at_once_is_quoted() -> None:
    (found,) = rehearsal(
        n0={
            "expected": [0],
            "ranks": {},
            "seconds": 60.0,
            "exit_code": None,
            "timed_out": True,
            "met": True,
            "tail": [],
        },
        n1={"expected": [1], "ranks": {}, "seconds": 1.0, "exit_code": 1, "tail": ["No module named torch"]},
    )
    assert found.host == "n1"
    assert "No module named torch" in found.message
