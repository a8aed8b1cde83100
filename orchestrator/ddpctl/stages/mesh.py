"""Every node listens as the job would, every other node dials in; then the slow links are measured again in quiet."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ddpctl.errors import DdpctlError, RemoteError, as_fault
from ddpctl.spec.event import Progress, StageStarted, Tell
from ddpctl.spec.fabric import HostNetwork, candidates, choose_fabric, other_addresses
from ddpctl.spec.mesh import NOISY_MBIT, OK, Dial, Fabric, Mesh, Neighbours, Pair, Speed, stalled_pairs, suspects
from ddpctl.spec.schedule import Schedule, schedule
from ddpctl.stages.limits import (
    BULK_BYTES,
    BUSY_REPEAT,
    MANY_HOSTS,
    MESH_DIAL_S,
    MESH_END_S,
    MESH_LISTEN_S,
    MESH_QUIET_S,
    MESH_READY_S,
    QUIET_BYTES,
    QUIET_REPEAT,
    SAMPLES,
    SMALL_BYTES,
)
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl_worker.wire.contract import AGENT_PORTS, TIMEOUT, WRONG_HOST

STAGE = "mesh"


@dataclass(frozen=True)
class MeshPlan:
    """What the mesh needs to know: the hosts' networks in node rank order, and the ports that the job will use.

    ``agents``: the job has restarts. The same ``seed`` gives the same sample of a big mesh."""

    networks: tuple[HostNetwork, ...]
    master: str
    master_port: int
    gang_port: int | None = None
    seed: str = ""
    agents: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(network.host for network in self.networks)

    def ports(self, host: str) -> tuple[int, ...]:
        """The job's own ports on this host. Every node tries the master's: any of them may be the master next time.

        Nodes that are one machine with the master have no such port of their own: it is the master's.
        """
        if host == self.master:
            own: tuple[int | None, ...] = (self.master_port, self.gang_port)
        else:
            local = {network.host for network in self.networks if network.local}
            own = () if {host, self.master} <= local else (self.master_port,)
        agent = self._agent_port(host) if self.agents else None
        return tuple(dict.fromkeys(port for port in (*own, agent) if port is not None))

    def _agent_port(self, host: str) -> int:
        """One that an agent may listen on, away from the master's; hosts that are one machine have different ones."""
        first, last = AGENT_PORTS
        count = last - first + 1
        return first + (self.master_port - first + count // 2 + self.hosts.index(host)) % count

    def role(self, host: str, port: int) -> str:
        """What one of these ports stands for. After a restart an agent's port, or the next master's, may be any of the
        usual ones."""
        if host == self.master and port in (self.master_port, self.gang_port):
            return "gang" if port == self.gang_port else "master"
        return "agent" if self.agents else "master"


@dataclass
class _Listening:
    """What the listeners said: the answer of each host that is ready, and the errors of the others."""

    nonce: str
    ready: dict[str, Mapping[str, Any]]
    errors: dict[str, DdpctlError]

    def targets(self, host: str, order: Schedule, addresses: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
        """Whom ``host`` dials, on which addresses and ports, in order."""
        return [
            {"peer": peer, "address": address, "ports": [*self.ready[peer]["listening"], *self.ready[peer]["samples"]]}
            for peer in order.targets[host]
            if peer in self.ready
            for address in addresses.get(peer, ())
        ]


@dataclass(frozen=True)
class _Bulk:
    """What the dialers send: ``size`` bytes, the best of ``repeat`` times. Every pair dials both ways, so that of many
    hosts each pushes only."""

    size: int
    repeat: int = 1
    find_mtu: bool = False
    ways: tuple[str, ...] = ("push", "pull")

    def to_request(self) -> dict[str, Any]:
        return {"bytes": self.size, "repeat": self.repeat, "find_mtu": self.find_mtu, "ways": list(self.ways)}


def run_mesh(plan: MeshPlan, fleet: Fleet, tell: Tell) -> tuple[Mesh, dict[str, DdpctlError]]:
    """The mesh of all hosts of the plan, and the errors of hosts that could not take part.

    ``tell`` hears of the stage's beginning and progress. How it ended the checks know: not every connection that fails
    is one that the job needs.
    """
    order = schedule(plan.hosts, plan.master, plan.seed)
    tell(StageStarted(STAGE, order.links, "links"))
    with _listeners(plan, fleet) as listening:
        bulk = _Bulk(BULK_BYTES) if len(plan.hosts) <= MANY_HOSTS else _Bulk(SMALL_BYTES, ways=("push",))
        seen = _dial_all(plan, order, listening, bulk, fleet, tell)
        errors = {**listening.errors, **seen.errors}
        mesh = _measure_again(_mesh(plan, order, listening, seen, errors), listening.nonce, fleet)
    return mesh, errors


@dataclass
class _Dialled:
    """What the dialers told."""

    dials: list[Dial] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    neighbours: dict[str, Neighbours] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)


def _dial_all(
    plan: MeshPlan, order: Schedule, listening: _Listening, bulk: _Bulk, fleet: Fleet, tell: Tell
) -> _Dialled:
    """The likeliest address of every host first. Only where that one is not reached by all, the others: an address
    that leads nowhere costs every dialer seconds."""
    best = {host: addresses[:1] for host, addresses in candidates(plan.networks).items()}
    requests = {host: listening.targets(host, order, best) for host in plan.hosts if host in listening.ready}
    seen = _dial(requests, listening.nonce, bulk, fleet, tell)
    missed = {dial.peer for dial in seen.dials if dial.status != OK} | {
        host for host, found in best.items() if not found
    }
    rest = {host: addresses for host, addresses in other_addresses(plan.networks).items() if host in missed}
    if rest:
        requests = {host: listening.targets(host, order, rest) for host in requests}
        more = _dial(requests, listening.nonce, bulk, fleet, None)
        known = {(speed.dialer, speed.peer) for speed in seen.speeds}
        seen.dials += more.dials
        seen.speeds += [speed for speed in more.speeds if (speed.dialer, speed.peer) not in known]
        seen.errors |= more.errors
    return seen


@contextmanager
def _listeners(plan: MeshPlan, fleet: Fleet) -> Iterator[_Listening]:
    """Every host listens while the body runs; all are ended, and waited for, on the way out."""
    listening = _Listening(secrets.token_hex(32), {}, {})
    ended, changed = threading.Event(), threading.Condition()
    samples = SAMPLES if len(plan.hosts) <= MANY_HOSTS else SAMPLES - 1

    def listen(transport: Transport) -> None:
        def on_frame(frame: Frame) -> None:
            with changed:
                listening.ready[transport.host] = frame.data
                changed.notify_all()

        request = {
            "nonce": listening.nonce,
            "ports": list(plan.ports(transport.host)),
            "samples": samples,
            "seconds": MESH_LISTEN_S,
        }
        try:
            transport.call("listen", request, on_frame=on_frame, timeout=None, until=ended)
        except Exception as error:  # whatever it is, the host is not waited for
            if not ended.is_set():
                with changed:
                    listening.ready.pop(transport.host, None)
                    listening.errors[transport.host] = as_fault(error, transport.host)
                    changed.notify_all()

    thread = threading.Thread(target=fleet.together, args=(listen, plan.hosts), name="mesh-listeners", daemon=True)
    thread.start()
    try:
        with changed:
            changed.wait_for(lambda: len(listening.ready) + len(listening.errors) >= len(plan.hosts), MESH_READY_S)
            silent = [host for host in plan.hosts if host not in {**listening.ready, **listening.errors}]
            late = f"it is still not listening {MESH_READY_S:g} s after the request"
            listening.errors |= {host: RemoteError(late, kind=TIMEOUT, host=host) for host in silent}
            ready = dict(listening.ready)
        yield replace(listening, ready=ready)  # who comes or goes from now on changes nothing
    finally:
        ended.set()
        thread.join(timeout=MESH_END_S)


def _dial(
    requests: Mapping[str, list[dict[str, Any]]],
    nonce: str,
    bulk: _Bulk,
    fleet: Fleet,
    tell: Tell | None,
) -> _Dialled:
    """Every host dials its targets, all hosts at once."""
    total = sum(len({target["peer"] for target in targets}) for targets in requests.values())
    done = 0
    lock = threading.Lock()

    def dial(transport: Transport) -> dict[str, Any]:
        nonlocal done
        targets = requests[transport.host]
        request = {"nonce": nonce, "targets": targets, **bulk.to_request()}
        answer = transport.call("dial", request, timeout=MESH_DIAL_S)
        if tell is not None:
            with lock:
                done += len({target["peer"] for target in targets})
                tell(Progress(STAGE, done, total, transport.host))
        return answer

    outcome = fleet.together(dial, [host for host, targets in requests.items() if targets])
    answers = [(host, outcome.results[host]) for host in requests if host in outcome.results]
    return _Dialled(
        dials=[dial for host, answer in answers for dial in _dials_of(host, answer)],
        speeds=[Speed(host, **entry) for host, answer in answers for entry in answer["speeds"]],
        neighbours={host: Neighbours(**answer["neighbours"]) for host, answer in answers if answer["neighbours"]},
        errors=dict(outcome.errors),
    )


def _dials_of(host: str, answer: Mapping[str, Any]) -> Iterator[Dial]:
    for peer, address, local, interface, ports in answer["open"]:
        for port in ports:
            yield Dial(host, peer, address, port, OK, local=local, interface=interface)
    for entry in answer["links"]:
        yield Dial(host, **entry)


def _mesh(
    plan: MeshPlan, order: Schedule, listening: _Listening, seen: _Dialled, errors: Mapping[str, DdpctlError]
) -> Mesh:
    """What was seen on the address of each host that turned out to be the right one."""
    dials = seen.dials
    fabric = choose_fabric(plan.networks, dials)
    dialled = [d for d in dials if d.dialer in fabric and d.peer in fabric and fabric[d.peer].address == d.address]
    kept = {(dial.dialer, dial.peer, dial.address) for dial in dialled}
    ports: dict[str, dict[int, str]] = {}
    for host, said in listening.ready.items():
        roles = dict.fromkeys(said["samples"], "sample")
        roles.update({port: plan.role(host, port) for port in said["listening"]})
        ports[host] = roles
    return Mesh(
        hosts=plan.hosts,
        master=plan.master,
        master_port=plan.master_port,
        agents=plan.agents,
        fabric=fabric,
        dials=tuple(dialled),
        reached=_reached_elsewhere(plan.networks, fabric, dials),
        speeds=tuple(s for s in seen.speeds if (s.dialer, s.peer, s.address) in kept),
        ports=ports,
        ranges={network.host: network.port_range for network in plan.networks},
        note=order.note,
        scheduled=order.pairs,
        absent={host: error.message for host, error in errors.items()},
        neighbours=seen.neighbours,
    )


def _reached_elsewhere(
    networks: Sequence[HostNetwork], fabric: Mapping[str, Fabric], dials: Sequence[Dial]
) -> dict[str, tuple[str, ...]]:
    """For hosts whose address is the wrong one: other addresses of the same hosts that answered.

    Wrong is an address that nobody reached and that another host answers at, or that lies in a network of its own. An
    address in the network of the others that nobody reaches is right, and the network is broken.
    """
    through = {(dial.peer, dial.address) for dial in dials if dial.status == OK}
    stolen = {(dial.peer, dial.address) for dial in dials if dial.status == WRONG_HOST}
    found: dict[str, tuple[str, ...]] = {}
    for network in networks:
        host = network.host
        mine = fabric.get(host)
        answered = tuple(sorted(address for peer, address in through if peer == host))
        if not answered or (mine and (host, mine.address) in through):
            continue
        others = [entry.address for peer, entry in fabric.items() if peer != host]
        if mine is None or (host, mine.address) in stolen or not network.shares(mine.address, others):
            found[host] = answered
    return found


def _measure_again(mesh: Mesh, nonce: str, fleet: Fleet) -> Mesh:
    """What looked bad is measured once more, and the better of both counts: a busy moment is not a bad cable.

    Bulk data that stalled: all at once. Slow and late links: a few at a time with nothing beside them, worst first,
    for at most MESH_QUIET_S seconds in all.
    """
    stalled = stalled_pairs(mesh)
    if stalled:
        mesh = _repeat(mesh, stalled, nonce, fleet, _Bulk(SMALL_BYTES, find_mtu=True))
    waiting = list(suspects(mesh))
    until = time.monotonic() + MESH_QUIET_S
    while waiting and time.monotonic() < until:
        busy: set[str] = set()
        batch: list[Pair] = []
        for pair in list(waiting):
            if not busy & set(pair):
                busy |= set(pair)
                batch.append(pair)
                waiting.remove(pair)
        mesh = _repeat(mesh, batch, nonce, fleet, _quiet_bulk(mesh, batch))
    return mesh


def _repeat(mesh: Mesh, pairs: Sequence[Pair], nonce: str, fleet: Fleet, bulk: _Bulk) -> Mesh:
    """These pairs dialled again, all at once."""
    requests: dict[str, list[dict[str, Any]]] = {}
    for dialer, peer in pairs:
        requests.setdefault(dialer, []).extend(_one_target(mesh, dialer, peer))
    speeds = {(speed.dialer, speed.peer): speed for speed in mesh.speeds}
    found = _dial(requests, nonce, bulk, fleet, None).speeds
    for speed in found:
        pair = (speed.dialer, speed.peer)
        speeds[pair] = _better(speeds[pair], speed)
    again = mesh.again | {(speed.dialer, speed.peer) for speed in found}
    return replace(mesh, speeds=tuple(speeds.values()), again=again)


def _quiet_bulk(mesh: Mesh, pairs: Sequence[Pair]) -> _Bulk:
    """As much as the slowest of these links should carry in a second, by what was seen of it."""
    rates = [
        rate
        for speed in mesh.speeds
        if (speed.dialer, speed.peer) in pairs
        for rate in (speed.push_mbit, speed.pull_mbit)
        if rate
    ]
    slowest = min(rates, default=0.0)
    size = int(min(QUIET_BYTES, max(SMALL_BYTES, slowest * 1e6 / 8)))
    return _Bulk(size, BUSY_REPEAT if slowest >= NOISY_MBIT else QUIET_REPEAT)


def _one_target(mesh: Mesh, dialer: str, peer: str) -> list[dict[str, Any]]:
    port = next(d.port for d in mesh.dials if (d.dialer, d.peer) == (dialer, peer) and d.status == OK)
    return [{"peer": peer, "address": mesh.fabric[peer].address, "ports": [port]}]


def _better(one: Speed, other: Speed) -> Speed:
    """The best of each value; a transfer that arrived once is not stalled."""

    def most(a: float | None, b: float | None) -> float | None:
        return max((v for v in (a, b) if v is not None), default=None)

    trips = [speed.rtt_ms for speed in (one, other) if speed.rtt_ms is not None]
    return Speed(
        one.dialer,
        one.peer,
        min(trips, default=None),
        most(one.push_mbit, other.push_mbit),
        most(one.pull_mbit, other.pull_mbit),
        OK if OK in (one.push, other.push) else other.push,
        OK if OK in (one.pull, other.pull) else other.pull,
        other.mtu or one.mtu,
        one.address,
    )
