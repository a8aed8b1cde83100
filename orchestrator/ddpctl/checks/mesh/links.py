"""Bad links: big packets that get lost, and links much slower or later than the rest."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, View
from ddpctl.checks.mesh import interface_of, mesh_check, network_answer, of_mesh, ok_finding
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_pairs_by_culprit
from ddpctl.spec.mesh import BROKEN, Mesh, Pair, late_links, slow_links
from ddpctl.spec.ranges import fold_names

# --- big packets -----------------------------------------------------------------------------------------------------


def _judge_bulk(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report links where small messages pass and bulk data stalls."""
    holes = _holes(mesh)
    for host, pairs in group_pairs_by_culprit(holes).items():
        yield _hole_finding(view, mesh, host, {pair: holes[pair] for pair in pairs})
    if not holes:
        yield from ok_finding(mesh, "big packets arrive in both directions")


def _measured(judge: Callable[[View, Mesh], Iterable[Finding]]) -> Callable[[View], Iterable[Finding]]:
    """Return a verdict on measured links that first reports undialled links, or that no link was measured."""

    @of_mesh
    def judged(view: View, mesh: Mesh) -> Iterable[Finding]:
        if mesh.speeds:
            yield from judge(view, mesh)
        elif mesh.pairs:
            yield report.unknown(None, "not checked: no link was measured")

    return judged


def _holes(mesh: Mesh) -> dict[Pair, int | None]:
    """Return (sender, receiver) of bulk data that never arrives -> largest packet that passed.

    Each direction appears once, whichever end measured it.
    """
    found: dict[Pair, int | None] = {}
    for speed in mesh.speeds:
        for state, pair in ((speed.push, (speed.dialer, speed.peer)), (speed.pull, (speed.peer, speed.dialer))):
            if state in BROKEN:
                found[pair] = speed.mtu or found.get(pair)
    return found


def _hole_finding(view: View, mesh: Mesh, host: str, holes: Mapping[Pair, int | None]) -> Finding:
    others = _others(host, holes)
    sends, receives = any(sender == host for sender, _ in holes), any(receiver == host for _, receiver in holes)
    direction = "between" if sends and receives else "from" if sends else "to"
    joint = "and" if direction == "between" else "to" if direction == "from" else "from"
    passed = min((mtu for mtu in holes.values() if mtu), default=None)
    mtus = {name: _mtu(view, mesh, name) for name in (host, *others)}
    text = f"big packets {direction} {host} {joint} {fold_names(others)} never arrive, small ones do"
    if passed:
        text += f"; packets of up to {passed} bytes pass, and the interface sends up to {mtus[host] or '?'}"
    command, fix = _mtu_fix(view, mesh, host, others, passed)
    return report.error(
        host,
        text,
        peer=report.single_host(others),
        fix=fix,
        command=command,
        evidence={"peers": list(others), "mtu": mtus, "passes": passed, "directions": [list(pair) for pair in holes]},
    )


def _others(host: str, pairs: Iterable[Pair]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for pair in pairs for name in pair if name != host))


def _mtu_fix(view: View, mesh: Mesh, host: str, others: Sequence[str], passed: int | None) -> tuple[str | None, str]:
    """Return the command for the host, and the rest of the fix in words."""
    interface = interface_of(mesh, host)
    if passed is None:
        return f"ip -s link show dev {interface}" if interface else None, (
            f"something between {host} and {fold_names(others)} drops every packet of bulk data: "
            "look for a firewall rule on "
            f"packet length or rate, and at the interface's error counters"
        )
    return report.as_root(view, host, f"ip link set dev {interface} mtu {passed}") if interface else None, (
        f"packets of up to {passed} bytes pass: set the interface's MTU to that, or raise what the switch or tunnel on "
        "the way carries; it is lost at a reboot: set it in the machine's network configuration too"
    )


def _mtu(view: View, mesh: Mesh, host: str) -> int | None:
    fabric = mesh.fabric.get(host)
    entries = network_answer(view, host).get("addresses", [])
    return next((entry["mtu"] for entry in entries if fabric and entry["address"] == fabric.address), None)


# --- slow and late ---------------------------------------------------------------------------------------------------


def _judge_bandwidth(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report links that were slow in both measurements."""
    if not any(speed.push_mbit for speed in mesh.speeds):
        return
    slow = {pair: value for pair, value in slow_links(mesh).items() if {pair, pair[::-1]} & mesh.again}
    rates = list(mesh.rates().values())
    middle = statistics.median(rates)
    for host, pairs in group_pairs_by_culprit(slow).items():
        yield _outlier(mesh, host, {pair: slow[pair] for pair in pairs}, "Mbit/s", middle)
    if not slow:
        words = f"{len(rates)} links, median {middle:.0f} Mbit/s over one TCP connection"
        yield from ok_finding(mesh, words, with_note=True)


def _judge_latency(view: View, mesh: Mesh) -> Iterable[Finding]:
    """Report round trips that were long in both measurements."""
    trips = [speed.rtt_ms for speed in mesh.speeds if speed.rtt_ms is not None]
    if not trips:
        return
    middle = statistics.median(trips)
    late = {pair: value for pair, value in late_links(mesh).items() if pair in mesh.again}
    for host, pairs in group_pairs_by_culprit(late).items():
        yield _outlier(mesh, host, {pair: late[pair] for pair in pairs}, "ms", middle)
    if not late:
        yield from ok_finding(mesh, f"{len(trips)} links, median round trip {middle:.2f} ms")


def _outlier(mesh: Mesh, host: str, pairs: Mapping[Pair, float], unit: str, middle: float) -> Finding:
    worst = max(pairs.values()) if unit == "ms" else min(pairs.values())
    others = _others(host, pairs)
    senders = {pair[0] for pair in pairs}
    if unit == "ms":
        where = f"a round trip between {host} and {fold_names(others)} takes"
    elif senders == {host}:
        where = f"the link from {host} to {fold_names(others)} gives"
    elif host not in senders:
        where = f"the link from {fold_names(others)} to {host} gives"
    else:
        where = f"the link between {host} and {fold_names(others)} gives"
    if unit == "Mbit/s":
        interface = interface_of(mesh, host)
        command = f"ip -s link show dev {interface}; ethtool {interface}" if interface else None
        fix = "the negotiated speed and the error counters show whether a port or cable is bad, or a neighbour is busy"
    else:
        command = f"traceroute -n {mesh.fabric[others[0]].address}"
        fix = "the route shows whether the path is a detour, or the node is only busy"
    number = f"{worst:.0f}" if worst >= 10 else f"{worst:.2g}"
    way = " over one TCP connection" if unit == "Mbit/s" else ""
    return report.warning(
        host,
        f"{where} {number} {unit}{way}, measured twice; the median of all links is {middle:.4g} {unit}",
        peer=report.single_host(others),
        fix=fix,
        command=command,
        evidence={"links": {f"{a} -> {b}": value for (a, b), value in pairs.items()}, "median": middle, "unit": unit},
    )


CHECKS = (
    mesh_check(
        "mesh.mtu",
        "big packets arrive in both directions",
        _measured(_judge_bulk),
        cause="Small messages pass and big packets vanish: an interface's MTU is larger than what a switch, tunnel or "
        "VPN on the way carries, and the ICMP message about it is filtered.",
        symptom="rendezvous and small tensors work, then: Read error ... Connection timed out; Timed out waiting "
        "1800000ms for recv operation to complete",
        fix="Set the MTU that passed (ddpctl finds it by trying): `sudo ip link set dev eth0 mtu 1500`.",
        seen=ON_HOSTS,
    ),
    mesh_check(
        "mesh.bandwidth",
        "no link is much slower than the others",
        _measured(_judge_bandwidth),
        cause="A link gives less than half of the median of all, twice in a row: a port that fell back to 100 Mbit/s, "
        "a bad cable, the management network instead of the fabric, a busy neighbour.",
        symptom="the job runs, slowly: every step waits for the slowest link",
        fix="`ethtool eth0` shows the negotiated speed; set `interface:` or `fabric_address:` if the network is wrong.",
        seen=ON_HOSTS,
    ),
    mesh_check(
        "mesh.latency",
        "no link takes much longer than the others",
        _measured(_judge_latency),
        cause="A round trip takes three times the median and at least 2 ms more, twice in a row: a detour, another "
        "site, power saving on the interface.",
        symptom="small all-reduces are slow",
        fix="`traceroute` between the two nodes; keep the nodes of one job in one site.",
        seen=ON_HOSTS,
    ),
)
