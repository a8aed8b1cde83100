"""Measures the network between the nodes.

Every node listens on the job's ports, and the other nodes dial it. Then slow links are measured again, without other
traffic.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ddpctl.errors import AnswerLate, DdpctlError, to_ddpctl_error
from ddpctl.spec.event import Progress, StageStarted, Tell
from ddpctl.spec.fabric import HostNetwork, candidates, choose_fabric, other_addresses
from ddpctl.spec.limits import NOISY_MBIT
from ddpctl.spec.mesh import OK, Dial, Fabric, Mesh, Neighbours, Pair, Speed, stalled_pairs, suspects
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
from ddpctl_worker.wire.contract import AGENT_PORTS, WRONG_HOST

STAGE = "mesh"


@dataclass(frozen=True)
class MeshPlan:
    """The hosts' networks in node rank order, and the ports that the job will use.

    ``agents``: the job has restarts. The same ``seed`` gives the same sample of a big mesh.
    """

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
        """Return the job's ports on this host.

        Every node tries the master port, because each may be the master next time. A node on the master's machine
        cannot: the master itself has that port there.
        """
        if host == self.master:
            own: tuple[int | None, ...] = (self.master_port, self.gang_port)
        else:
            local = {network.host for network in self.networks if network.local}
            own = () if {host, self.master} <= local else (self.master_port,)
        agent = self._agent_port(host) if self.agents else None
        return tuple(dict.fromkeys(port for port in (*own, agent) if port is not None))

    def _agent_port(self, host: str) -> int:
        """Return a port of the agents' range far from the master port, and different for each host of a machine."""
        first, last = AGENT_PORTS
        count = last - first + 1
        return first + (self.master_port - first + count // 2 + self.hosts.index(host)) % count

    def role(self, host: str, port: int) -> str:
        """Return the purpose of a port: "gang", "master" or "agent".

        With restarts, an agent or the next master may listen on any of the usual ports.
        """
        if host == self.master and port in (self.master_port, self.gang_port):
            return "gang" if port == self.gang_port else "master"
        return "agent" if self.agents else "master"


@dataclass
class _Listening:
    """The answer of each host that listens, and the error of each host that does not."""

    nonce: str
    ready: dict[str, Mapping[str, Any]]
    errors: dict[str, DdpctlError]

    def targets(self, host: str, order: Schedule, addresses: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
        """Return the peers that ``host`` dials, each with an address and ports, in order."""
        return [
            {"peer": peer, "address": address, "ports": [*self.ready[peer]["listening"], *self.ready[peer]["samples"]]}
            for peer in order.targets[host]
            if peer in self.ready
            for address in addresses.get(peer, ())
        ]


@dataclass(frozen=True)
class _Bulk:
    """A measurement by each dialer: ``size`` bytes, ``repeat`` times, of which the best counts.

    Every pair of hosts dials in both directions. With many hosts a push from each side is therefore enough.
    """

    size: int
    repeat: int = 1
    find_mtu: bool = False
    ways: tuple[str, ...] = ("push", "pull")

    def to_request(self) -> dict[str, Any]:
        return {"bytes": self.size, "repeat": self.repeat, "find_mtu": self.find_mtu, "ways": list(self.ways)}


def run_mesh(plan: MeshPlan, fleet: Fleet, tell: Tell) -> tuple[Mesh, dict[str, DdpctlError]]:
    """Return the mesh of all hosts of the plan, and the errors of hosts that could not take part.

    ``tell`` gets the stage's start and progress. Its end is reported after the checks, because the job may not need a
    connection that failed.
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
    """The merged answers of the dialers."""

    dials: list[Dial] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    neighbours: dict[str, Neighbours] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)


def _dial_all(
    plan: MeshPlan, order: Schedule, listening: _Listening, bulk: _Bulk, fleet: Fleet, tell: Tell
) -> _Dialled:
    """Dial the most likely address of every host first, and its other addresses only where a dialer failed.

    An address that leads nowhere costs every dialer seconds.
    """
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
        measured = {(speed.dialer, speed.peer) for speed in seen.speeds}
        seen.dials += more.dials
        seen.speeds += [speed for speed in more.speeds if (speed.dialer, speed.peer) not in measured]
        seen.errors |= more.errors
    return seen


@contextmanager
def _listeners(plan: MeshPlan, fleet: Fleet) -> Iterator[_Listening]:
    """Let every host listen while the body runs. Afterwards end all listeners, and wait for their end."""
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
        except Exception as error:  # after any error the host will not listen
            if not ended.is_set():
                with changed:
                    listening.ready.pop(transport.host, None)
                    listening.errors[transport.host] = to_ddpctl_error(error, transport.host)
                    changed.notify_all()

    thread = threading.Thread(target=fleet.together, args=(listen, plan.hosts), name="mesh-listeners", daemon=True)
    thread.start()
    try:
        with changed:
            changed.wait_for(lambda: len(listening.ready) + len(listening.errors) >= len(plan.hosts), MESH_READY_S)
            silent = [host for host in plan.hosts if host not in {**listening.ready, **listening.errors}]
            late = f"it is still not listening {MESH_READY_S:g} s after the request"
            listening.errors |= {host: AnswerLate(late, host=host) for host in silent}
            ready = dict(listening.ready)
        yield replace(listening, ready=ready)  # a later change of the dictionary must not reach the dialling
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
    """Let every host dial its targets, all hosts at the same time."""
    total = sum(len({target["peer"] for target in targets}) for targets in requests.values())
    done = 0
    lock = threading.Lock()

    def dial(transport: Transport) -> Any:
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
        speeds=[speed for _, answer in answers for speed in answer["speeds"]],
        neighbours={host: answer["neighbours"] for host, answer in answers if answer["neighbours"]},
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
    """Return the mesh with the results for the chosen address of each host."""
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
    """Return for each host with a wrong address its other addresses that answered.

    An address that no dialer reached is wrong if
    - another host answers there, or
    - it shares no network with the addresses of the other hosts.
    An unreached address within the network of the other hosts is right: the network is broken.
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
    """Measure the bad links again and keep the better of both results: a busy moment is not a bad cable.

    Stalled links are measured all at the same time. Slow and late links follow, the worst first, in batches in which no
    two links share a host, for at most MESH_QUIET_S seconds in all.
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
    """Send as many bytes as the slowest of these links carries in a second, by its first measurement."""
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


def _better(first: Speed, second: Speed) -> Speed:
    """Return the best of each value. A link that passed a transfer once is not stalled."""

    def most(a: float | None, b: float | None) -> float | None:
        return max((v for v in (a, b) if v is not None), default=None)

    trips = [speed.rtt_ms for speed in (first, second) if speed.rtt_ms is not None]
    return Speed(
        first.dialer,
        first.peer,
        min(trips, default=None),
        most(first.push_mbit, second.push_mbit),
        most(first.pull_mbit, second.pull_mbit),
        OK if OK in (first.push, second.push) else second.push,
        OK if OK in (first.pull, second.pull) else second.pull,
        second.mtu or first.mtu,
        first.address,
    )
