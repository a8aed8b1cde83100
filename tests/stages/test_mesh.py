"""The mesh of a thousand hosts, on a simulated fleet: seconds are counted, not waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks.base import Requirements, Target, View
from ddpctl.checks.catalogue import MESH
from ddpctl.checks.judge import judge_checks
from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.fabric import HostNetwork, NodeAddress
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Mesh
from ddpctl.spec.question import Answer
from ddpctl.stages.mesh import MeshPlan, run_mesh
from ddpctl.transport import answers
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, T, Transport
from ddpctl_worker.mesh.limits import CONNECT_S, IN_FLIGHT

pytestmark = pytest.mark.slow

PORT, GANG = 29500, 29501
SAMPLES = [40000, 50000]
Dropped = Callable[[str, str], bool]


class Node:
    """A host in which each dial counts the seconds that the worker's dialer would take."""

    def __init__(self, host: str, world: World) -> None:
        self.host, self._world = host, world
        self.seconds = 0.0

    def call(self, verb: str, args: Any = None, *, on_frame: Any = None, timeout: Any = 60.0, until: Any = None) -> Any:
        if verb == "listen":
            if self.host not in self._world.late:
                listening = {"listening": args["ports"], "samples": SAMPLES, "taken": [], "range": [32768, 60999]}
                on_frame(Frame(listening))
                return {"accepted": 0}
            raise RemoteError("it is still not listening 30 s after the request", kind="timeout", host=self.host)
        assert verb == "dial"
        return self._dial(args["targets"], timeout)

    def _dial(self, targets: list[dict[str, Any]], timeout: float) -> Any:
        lost = [one for one in targets if self._world.dropped(self.host, one["peer"])]
        fine = [one for one in targets if one not in lost]
        seconds = math.ceil(sum(len(one["ports"]) for one in lost) / IN_FLIGHT) * CONNECT_S
        if seconds > timeout:
            raise RemoteError(f"no answer within {timeout:g} s", kind="timeout", host=self.host)
        self.seconds += seconds
        mine = self._world.addresses[self.host]
        found = {
            "open": [[one["peer"], one["address"], mine, "eth0", one["ports"]] for one in fine],
            "links": [
                {"peer": one["peer"], "address": one["address"], "port": port, "status": "dropped"}
                for one in lost
                for port in one["ports"]
            ],
            "speeds": [
                {
                    "dialer": self.host,
                    "peer": one["peer"],
                    "address": one["address"],
                    "rtt_ms": 0.1,
                    "push_mbit": 940.0,
                }
                for one in fine
            ],
            "neighbours": {"limit": 32768, "entries": 10, "overflows": 0},
        }
        return answers.check_result("dial", found, self.host, {"targets": targets})

    def close(self) -> None: ...


class World:
    """Hosts in the same network. ``dropped(dialer, peer)``: whether all packets between the two are lost."""

    def __init__(self, count: int, dropped: Dropped, late: Iterable[str] = ()) -> None:
        self.names = tuple(f"n{number}" for number in range(count))
        self.addresses = {name: f"10.0.{n // 250}.{n % 250 + 1}" for n, name in enumerate(self.names)}
        self.dropped, self.late = dropped, frozenset(late)
        self.seconds = 0.0

    # -- a Fleet

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.names

    def transport(self, host: str) -> Transport:
        return Node(host, self)  # type: ignore[return-value]

    def together(self, work: Callable[[Transport], T], hosts: Iterable[str] | None = None) -> FleetOutcome[T]:
        """Work host by host; the counted seconds are the seconds of the slowest host."""
        results: dict[str, T] = {}
        errors: dict[str, DdpctlError] = {}
        nodes = [Node(host, self) for host in (self.names if hosts is None else hosts)]
        for node in nodes:
            try:
                results[node.host] = work(node)  # type: ignore[arg-type]
            except DdpctlError as error:
                errors[node.host] = error
        self.seconds += max((node.seconds for node in nodes), default=0.0)
        return FleetOutcome(results, errors)

    def map(self, work: Callable[[Transport], T], hosts: Any = None, *, on_done: Any = None) -> FleetOutcome[T]:
        return self.together(work, hosts)

    def close(self) -> None: ...

    # -- what is seen

    def mesh(self) -> Mesh:
        networks = tuple(
            HostNetwork(name, (NodeAddress(address, "eth0", prefix=16),), ssh_address=address)
            for name, address in self.addresses.items()
        )
        fleet: Fleet = self
        mesh, _ = run_mesh(MeshPlan(networks, self.names[0], PORT, GANG, "lab"), fleet, lambda event: None)
        return mesh

    def findings(self) -> list[Finding]:
        targets = tuple(Target(name, address, "python3", "~") for name, address in self.addresses.items())
        answers = {name: {"network": Answer(True, self._network(name))} for name in self.names}
        clean: Mapping[str, Any] = {"uid": 0, "iptables": ""}
        view = View(
            targets, Requirements(master="n0"), answers, mesh=self.mesh(), firewalls=dict.fromkeys(self.names, clean)
        )
        return [found for found in judge_checks(MESH, view) if found.severity is not Severity.OK]

    def _network(self, name: str) -> dict[str, Any]:
        entry = {"address": self.addresses[name], "interface": "eth0", "family": 4, "prefix": 16, "up": True}
        table = {"limit": 32768, "entries": 10, "overflows": 0}
        return {
            "addresses": [{**entry, "speed": 10000}],
            "ssh_address": self.addresses[name],
            "port_range": [32768, 60999],
            "gpus": 0,
            "uid": 0,
            "neighbours": table,
        }


def test_with_restarts_every_host_listens_as_an_agent_may_and_where_the_next_master_would() -> None:
    networks = tuple(HostNetwork(name, (), local=name == "b") for name in "abc")
    plan = MeshPlan(networks, "a", PORT, GANG, agents=True)
    ports = {host: plan.ports(host) for host in plan.hosts}
    assert ports["a"][:2] == (PORT, GANG)
    agents = [found[-1] for found in ports.values()]
    assert len(set(agents)) == 3
    assert all(29600 <= port <= 29999 and port not in (PORT, GANG) for port in agents)
    assert [plan.role("a", port) for port in ports["a"]] == ["master", "gang", "agent"]
    assert {plan.role("b", port) for port in ports["b"]} == {"agent"}
    assert MeshPlan(networks, "a", PORT, GANG).ports("b") == (PORT,)


@given(st.integers(1, 65535), st.integers(1, 100))
def test_no_two_of_a_machine_s_ports_are_the_same(port: int, count: int) -> None:
    networks = tuple(HostNetwork(f"n{number}", (), local=True) for number in range(count))
    plan = MeshPlan(networks, "n0", port, port + 1, agents=True)
    found = [one for host in plan.hosts for one in plan.ports(host)]
    assert len(found) == len(set(found)) == count + 2


def test_thousand_hosts_and_a_master_that_drops_everything_are_named_within_a_minute() -> None:
    world = World(1000, lambda dialer, peer: "n0" in (dialer, peer))
    found = world.findings()
    assert world.seconds < 60
    assert [(one.check, one.severity, one.host) for one in found] == [("mesh.ports", Severity.ERROR, "n0")]
    assert "every other node cannot connect to n0" in found[0].message


def test_thousand_hosts_that_all_drop_everything_take_no_longer() -> None:
    world = World(1000, lambda dialer, peer: True)
    found = [one for one in world.findings() if one.severity is Severity.ERROR]
    assert world.seconds < 60
    assert [(one.check, one.host) for one in found] == [("mesh.ports", None)]


def test_full_mesh_in_which_nothing_comes_through_ends_in_time() -> None:
    world = World(64, lambda dialer, peer: True)
    assert [one.check for one in world.findings() if one.severity is Severity.ERROR] == ["mesh.ports"]
    assert world.seconds < 60


def test_two_racks_of_three_hundred_hosts_that_are_kept_apart() -> None:
    def apart(dialer: str, peer: str) -> bool:
        return {int(dialer[1:]) // 30, int(peer[1:]) // 30} == {3, 7}

    (found,) = World(300, apart).findings()
    assert (found.check, found.severity) == ("mesh.ports", Severity.ERROR)
    assert {int(host[1:]) // 30 for host in found.evidence["hosts"]} == {3, 7}


def test_what_a_late_listener_kept_from_being_dialled_is_unknown() -> None:
    found = World(3, lambda dialer, peer: False, late=["n2"]).findings()
    assert {one.severity for one in found} == {Severity.UNKNOWN}
    assert {one.host for one in found} == {"n2"}
    assert {"mesh.ports", "mesh.route", "mesh.identity", "mesh.mtu", "fabric.address"} <= {one.check for one in found}
    assert "4 of 6 links were not tried (n2: it is still not listening" in found[0].message
