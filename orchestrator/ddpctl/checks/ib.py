"""InfiniBand and RoCE: ports, pinned memory, and RoCE addresses.

Faults: a port that is down or slower than on other hosts, memory that may not be pinned, RoCE addresses that do not
reach each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import hca, python, report
from ddpctl.checks.base import NO_HARDWARE, Check, View
from ddpctl.checks.hca import Port
from ddpctl.checks.host import MACHINE
from ddpctl.checks.host_limits import RELOGIN, raise_limit
from ddpctl.checks.limits import MEMLOCK_LEAST_BYTES
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_hosts_by_value, name_hosts

FINDS_GID = (2, 21)  # from this version on NCCL looks for the index itself; before, it takes entry 0
V2 = "RoCE v2"


# --- ports -----------------------------------------------------------------------------------------------------------


def _judge_ports(view: View) -> Iterable[Finding]:
    down = list(_down(view))
    yield from down
    tainted = {finding.host for finding in down}
    yield from _rates({host: ports for host, ports in hca.active_used_ports(view).items() if host not in tainted})
    yield from _mtus(view, {host: ports for host, ports in hca.selected_ports(view).items() if host not in tainted})


def _down(view: View) -> Iterable[Finding]:
    up: dict[str, list[str]] = {}
    for host, ports in hca.active_used_ports(view).items():
        for port in ports:
            up.setdefault(hca.label(port), []).append(host)
    settings = hca.settings_of(view)
    for host, ports in hca.used_ports(view).items():
        for port in ports:
            others = [name for name in up.get(hca.label(port), []) if name != host]
            chosen = hca.is_named(settings[host].get("NCCL_IB_HCA", ""), port)
            if hca.is_active(port) or not (others or chosen):
                continue  # a port that is down on every host has no cable
            why = "NCCL_IB_HCA names it" if chosen else f"it is up on {name_hosts(others)}"
            yield report.finding(
                Severity.ERROR if chosen else Severity.WARNING,
                host,
                f"{hca.label(port)} is {_word(port['state'])} ({_word(port['phys_state'])}); {why}",
                fix="check the cable, the switch port and the subnet manager; or keep NCCL off it: NCCL_IB_HCA="
                f"^{port['device']} in the inventory (`env:`)",
                command=f"ibstat {port['device']}",
                evidence=port,
            )


def _word(text: str) -> str:
    return text.partition(":")[2].strip() or text or "unknown"


def _rates(up: dict[str, list[Port]]) -> Iterable[Finding]:
    """Report links that came up slower than their peers.

    NCCL takes the fastest ports. A slower port that is up may be the Ethernet of a virtual machine, or lead to the
    storage.
    """
    rates = {host: hca.summary(ports) for host, ports in up.items()}
    (most, most_hosts), *minorities = group_hosts_by_value(rates) or [("", [])]
    for slower, hosts in minorities:
        harmless = hca.summary(hca.fastest_ports(up[hosts[0]])) == hca.summary(hca.fastest_ports(up[most_hosts[0]]))
        yield report.finding(
            Severity.INFO if harmless else Severity.WARNING,
            report.single_host(hosts),
            f"{name_hosts(hosts)} {'has' if len(hosts) == 1 else 'have'} {slower} active, "
            f"{name_hosts(most_hosts)} {most}" + ("; harmless, NCCL takes the fastest" if harmless else ""),
            fix="a link that came up slower than its peers has a bad cable or a wrong port",
            command="ibstat || ibv_devinfo" if len(hosts) == 1 else None,
            evidence={"rates": rates, "hosts": hosts},
        )


def _mtus(view: View, mine: dict[str, list[Port]]) -> Iterable[Finding]:
    """Compare the size of RDMA packets, as libibverbs reports it: NCCL takes the smaller size of two ends."""
    reported = {host: (value.get("verbs") or {}).get("mtus", {}) for host, value in view.values(hca.PORTS).items()}
    values: dict[tuple[str, str], dict[str, int]] = {}
    for host, ports in mine.items():
        for port in ports:
            if port["device"] in reported[host]:
                alike = (port["device"], port["link_layer"])
                values.setdefault(alike, {})[host] = reported[host][port["device"]]
    for (device, _), mtus in values.items():
        most = max(mtus.values())
        for host, mtu in mtus.items():
            if mtu < most:
                yield _small_mtu(view, host, device, mtu, most)


def _small_mtu(view: View, host: str, device: str, mtu: int, most: int) -> Finding:
    port = next(port for port in hca.ports_of(view)[host] if port["device"] == device)
    interface = next((gid["interface"] for gid in port["gids"] if gid["interface"]), None)
    raise_it = f"ip link set dev {interface} mtu {9000 if most == 4096 else most + 100}"
    return report.warning(
        host,
        f"{device} sends packets of {mtu} bytes (active_mtu), on other hosts of {most}: NCCL takes the smaller size",
        fix="the switch must carry it too; it is lost at a reboot unless the network's settings have it"
        if hca.is_roce(port)
        else "the subnet manager sets it for the partition",
        command=report.as_root(view, host, raise_it) if hca.is_roce(port) and interface else None,
        evidence={"active_mtu": mtu, "most": most},
    )


# --- pinned memory ---------------------------------------------------------------------------------------------------


def _judge_memlock(view: View) -> Iterable[Finding]:
    """Check the hard limit: ddpctl raises the soft limit for the job."""
    machines = view.values(MACHINE)
    for host in hca.selected_ports(view):
        machine = machines.get(host)
        if machine is None or machine.get("locks_memory", machine["uid"] == 0):
            continue
        _, hard = machine["limits"]["memlock"]
        if hard is None or hard >= MEMLOCK_LEAST_BYTES:
            continue
        boxed = bool(machine.get("container")) or machine["uid"] == 0
        yield report.error(
            host,
            f"the job may pin {hard // 1024} KiB of memory (ulimit -Hl), and NCCL over RDMA pins hundreds of MB",
            fix="start the container with --ulimit memlock=-1 --cap-add IPC_LOCK" if boxed else RELOGIN,
            command=None if boxed else raise_limit(view, host, machine["user"], "memlock"),
            evidence={"memlock": machine["limits"]["memlock"], "locks_memory": machine.get("locks_memory")},
        )


# --- RoCE addresses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The entry of the RoCE ports' address tables that NCCL takes on a host, and the reason."""

    index: int
    why: str


def _judge_gid(view: View) -> Iterable[Finding]:
    """Report an entry that does not exist, or that is of another kind than on other hosts."""
    kinds: dict[str, str] = {}
    choices = _choices(view)
    for host, ports in hca.selected_ports(view).items():
        roce = [port for port in ports if hca.is_roce(port)]
        if host not in choices or not roce:
            continue
        taken = [_taken(port, choices[host].index) for port in roce]
        kinds[host] = ", ".join(sorted({_kind(entry) for entry in taken}))
        for port, entry in zip(roce, taken, strict=True):
            yield from _entry(host, port, choices[host], entry)
    sorted_kinds = group_hosts_by_value(kinds)
    if len(sorted_kinds) > 1:
        sides = ", ".join(f"{name_hosts(hosts)}: {kind}" for kind, hosts in sorted_kinds)
        yield report.error(
            None,
            f"NCCL takes RoCE addresses of different kinds, which do not reach each other: {sides}",
            fix="remove NCCL_IB_GID_INDEX (NCCL 2.21 and newer find the entry), or set it for each host (`env:`)",
            evidence={"kinds": kinds},
        )


def _choices(view: View) -> dict[str, Choice]:
    """Return host -> the entry: the setting's, or entry 0 for an NCCL that does not look for an entry itself."""
    found: dict[str, Choice] = {}
    versions = hca.nccl_versions(view)
    for host, settings in hca.settings_of(view).items():
        index, version = settings.get("NCCL_IB_GID_INDEX", ""), versions.get(host, FINDS_GID)
        if index.isdigit():
            found[host] = Choice(int(index), f"NCCL_IB_GID_INDEX={index}")
        elif not index and version < FINDS_GID:
            found[host] = Choice(0, f"NCCL {'.'.join(map(str, version))} takes index 0 where none is set, which")
    return found


def _taken(port: Port, index: int) -> dict[str, Any] | None:
    return next((gid for gid in port["gids"] if gid["index"] == index), None)


def _kind(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "none"
    return f"{entry['type']} over {'IPv4' if _is_v4(entry) else 'IPv6'}"


def _is_v4(gid: dict[str, Any]) -> bool:
    """Return whether the address is ``::ffff:a.b.c.d``."""
    return str(gid["gid"]).startswith("0000:0000:0000:0000:0000:ffff:")


def _good(port: Port) -> list[int]:
    """Return the entries that reach beyond one switch: RoCE v2, over IPv4 if the port has such an entry."""
    usable = [gid for gid in port["gids"] if gid["type"] == V2 and not str(gid["gid"]).startswith("fe80")]
    return [gid["index"] for gid in usable if _is_v4(gid)] or [gid["index"] for gid in usable]


def _entry(host: str, port: Port, choice: Choice, entry: dict[str, Any] | None) -> Iterable[Finding]:
    good = _good(port)
    if choice.index in good:
        return
    what = "names no address" if entry is None else f"is of type {entry['type']} ({entry['gid']})"
    yield report.finding(
        Severity.ERROR if entry is None else Severity.WARNING,
        host,
        f"{choice.why} {what} of {hca.label(port)}; RoCE v2 with an address that is routed: {good or 'none'}",
        fix=f"set NCCL_IB_GID_INDEX={good[0]} for it in the inventory (`env:`); NCCL 2.21 and newer find it themselves"
        if good
        else f"give the interface of {port['device']} an IP address",
        command=f"grep -rs . /sys/class/infiniband/{port['device']}/ports/{port['port']}/gid_attrs/types/",
        evidence=dict(port),
    )


CHECKS = (
    Check(
        "ib.port",
        "InfiniBand and RoCE ports are up",
        _judge_ports,
        ask=hca.ASK,
        cause="A port that the job uses is not ACTIVE, slower, or has smaller packets, while the same port of other "
        "hosts is fine. A port that is down on every host is assumed to have no cable.",
        symptom="Got completion with error 12 ... vendor err 129; or silence, and NCCL over slow TCP",
        fix="Cable, switch port, subnet manager; NCCL_IB_HCA to keep off the port.",
        seen=NO_HARDWARE,
        exempt=hca.unused_ports,
    ),
    Check(
        "ib.memlock",
        "memory may be pinned for RDMA",
        _judge_memlock,
        ask=(*hca.ASK, MACHINE),
        cause="The hard limit of locked memory (ulimit -Hl) of a login over SSH is too small for RDMA buffers, or "
        "root in a container lacks CAP_IPC_LOCK. (ddpctl raises the soft limit for the job.)",
        symptom="Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        fix="memlock unlimited in /etc/security/limits.d, then a new login; `docker run --ulimit memlock=-1 "
        "--cap-add IPC_LOCK` for a container.",
        seen=NO_HARDWARE,
        exempt=hca.unselected_ports,
    ),
    Check(
        "ib.gid",
        "RoCE addresses fit",
        _judge_gid,
        ask=(*hca.ASK, *python.ASK_TORCH),
        cause="NCCL_IB_GID_INDEX, from the inventory, the login or nccl.conf, picks an entry of a used adapter's "
        "address table that is not there, not RoCE v2, or of another kind than on the other hosts. NCCL before "
        "2.21 takes entry 0 by default.",
        symptom="ibv_modify_qp failed with error Connection timed out; Invalid argument",
        fix="The index of the entry with type RoCE v2 and an IPv4 address, which may differ by host.",
        seen=NO_HARDWARE,
        exempt=hca.unselected_ports,
    ),
)
