"""Whether NCCL can use the adapters that are up: libraries, device nodes, plugins, settings, and GPU memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from ddpctl.checks import env, hca, python, report
from ddpctl.checks.base import NO_HARDWARE, Check, Target, View
from ddpctl.checks.fabric import networks_of
from ddpctl.checks.gpu.in_use import smis, uses_gloo
from ddpctl.checks.hca import Port
from ddpctl.checks.limits import FAST_ETHERNET_GBIT
from ddpctl.checks.mesh import network_question
from ddpctl.checks.python import PYTHON
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.nvidia import KERNEL, SMI, numbers
from ddpctl.spec.values import plural

NO_GPUDIRECT = ("GeForce", "GB10")  # NVIDIA supports no GPUDirect RDMA for them; GB10 is the GPU of a DGX Spark
BOTH_PEERMEM = (2, 23)  # from this version on NCCL also knows the new name nvidia_peermem
# from these versions of Linux and NCCL on, GPU memory is reached without a module, with NVIDIA's open driver
DMABUF = ((5, 12), (2, 13))
PLUGIN = "aws-ofi-nccl"
BY_NETWORK = "NCCL_IB_SUBNET_AWARE_ROUTING"  # NCCL then calls a peer from the port that is in the peer's network
_WHERE_SET = "/etc/nccl.conf /etc/environment /etc/profile.d/* ~/.nccl.conf ~/.bashrc ~/.profile"
_BOX = "a container: `docker run --device=/dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1`; "


# --- from here to the adapter ----------------------------------------------------------------------------------------


def _judge_use(view: View) -> Iterable[Finding]:
    if uses_gloo(view):
        return
    found, up, logins = view.values(hca.PORTS), hca.active_used_ports(view), view.values(env.question)
    for target in view.targets:
        host = target.name
        if host not in found:
            continue
        settings, mine = env.nccl_settings(view, target), hca.fastest_ports(up.get(host, []))
        yield from _switched_off(target, settings, found[host]["ports"])
        blocked = _blocked(host, found[host], mine)
        if blocked is not None:
            yield blocked
        elif any(hca.is_efa(port) for port in mine) and "/" not in settings.get("NCCL_NET_PLUGIN", ""):
            yield from _plugin(host, logins.get(host, {}), mine)


def _switched_off(target: Target, settings: Mapping[str, str], every: list[Port]) -> Iterable[Finding]:
    """Report active ports that a setting keeps NCCL off.

    A setting in the inventory is intended. A port of Ethernet alone is an info: its network need not be made for RoCE.
    """
    host, meant = target.name, target.env
    ports = [port for port in every if hca.is_active(port) and not hca.is_efa(port)]
    chosen, switch = settings.get("NCCL_IB_HCA", ""), hca.switch(settings)
    if not ports:
        return
    if switch is not None:
        name = switch.partition("=")[0]
        yield report.finding(
            Severity.INFO if name in meant or all(map(hca.is_roce, ports)) else Severity.WARNING,
            host,
            f"{switch} keeps NCCL on TCP, while {hca.summary(ports)} are up"
            + ("; as the inventory says" if name in meant else ""),
            fix=f"remove {name} from the login's profile or nccl.conf, or set `{name}` in the inventory (`env:`)",
            command=f"grep -ns {name} {_WHERE_SET}",
            evidence={"setting": switch},
        )
    elif not any(hca.selects(chosen, port) for port in ports):
        devices = ", ".join(sorted({port["device"] for port in ports}))
        yield report.warning(
            host,
            f"NCCL_IB_HCA={chosen} names no port that is up: NCCL takes TCP. Available: {devices}",
            fix="correct NCCL_IB_HCA for it in the inventory (`env:`), or leave it out",
            command="ls /sys/class/infiniband",
            evidence={"NCCL_IB_HCA": chosen, "devices": sorted({port["device"] for port in ports})},
        )


def _blocked(host: str, value: Mapping[str, Any], mine: list[Port]) -> Finding | None:
    """Return the finding for ports that are active but that a process on the host cannot open."""
    devices = sorted({port["device"] for port in mine})
    verbs = value.get("verbs")
    if not devices or verbs is None:
        return None
    shut = {device: fault for device in devices if (fault := value.get("access", {}).get(device))}
    lost = [device for device in devices if device not in verbs["devices"]]
    what = "NCCL cannot use them and takes TCP" if lost == devices else f"NCCL cannot use {', '.join(lost)}"
    if not lost:
        return None
    if verbs["error"]:
        why = verbs["error"]
        fix = "install libibverbs1 and ibverbs-providers (Debian, Ubuntu), or libibverbs (RHEL), where the job runs"
        command = "ldconfig -p | grep ibverbs"
    elif shut:
        why = next(iter(shut.values()))
        fix = _BOX + "elsewhere rdma-core's udev rules open the nodes to everybody"
        command = "ls -l /dev/infiniband"
    else:
        why = f"libibverbs does not open {', '.join(lost)}: the adapter's driver for it is missing"
        fix = "install ibverbs-providers (Debian, Ubuntu), libibverbs (RHEL), or the vendor's own"
        command = "ls /etc/libibverbs.d; ibv_devices"
    return report.finding(
        Severity.INFO
        if all(hca.is_roce(port) and hca.rate(port) < FAST_ETHERNET_GBIT for port in mine)
        else Severity.WARNING,
        host,
        f"{hca.summary(mine)} are up, but {what} from where the job runs: {why}",
        fix=fix,
        command=command,
        evidence={"access": shut, "verbs": verbs},
    )


def _plugin(host: str, found: Mapping[str, Any], mine: list[Port]) -> Iterable[Finding]:
    if found.get("net_plugins"):
        return
    elsewhere = found.get("plugins_elsewhere") or []
    folder = elsewhere[0].rpartition("/")[0] if elsewhere else ""
    there = f"; it is in {folder}, where no process looks" if elsewhere else ""
    yield report.warning(
        host,
        f"NCCL has no plugin for the {plural(sum(map(hca.is_efa, mine)), 'active EFA port')} ({PLUGIN}): it takes "
        f"TCP{there}",
        fix=f"set LD_LIBRARY_PATH with {folder} in the inventory (`env:`)"
        if elsewhere
        else "Amazon's EFA installer installs it, and Amazon's training containers have it",
        command="ls -d /opt/amazon/* /opt/aws-ofi-nccl",
        evidence={"plugins_elsewhere": elsewhere},
    )


# --- from the adapter to the GPU -------------------------------------------------------------------------------------


def _judge_gpudirect(view: View) -> Iterable[Finding]:
    kernels, pythons, versions = view.values(KERNEL), view.values(PYTHON), hca.nccl_versions(view)
    found = view.values(hca.PORTS)
    gone = _without_gpudirect(view)
    for host in [host for host in found if host not in gone and host in kernels]:
        version, release = versions.get(host), pythons.get(host, {}).get("kernel", "")
        marks = found[host].get("peermem")
        if marks is None or _has_dmabuf(kernels[host].get("version", ""), release, version):
            continue
        if not marks and not {"nvidia_peermem", "nv_peer_mem"} & set(kernels[host].get("modules", ())):
            yield report.warning(
                host,
                "nvidia_peermem is not loaded: the adapters cannot reach GPU memory, every message is copied through "
                "host memory",
                fix="`modprobe` lasts until the next reboot: put nvidia-peermem into /etc/modules-load.d",
                command=report.as_root(view, host, "modprobe nvidia-peermem"),
                evidence={"version": kernels[host].get("version")},
            )
        elif version is not None and version < BOTH_PEERMEM and not any("memory_peers" in mark for mark in marks):
            yield report.warning(
                host,
                f"NCCL {'.'.join(map(str, version))} does not see nvidia_peermem, only its older name: GPUDirect RDMA "
                "is off, about ten times slower between nodes",
                fix=f"use NCCL 2.23 or newer; {python.MANAGED}",
                evidence={"peermem": marks},
            )


def _has_dmabuf(driver: str, release: str, version: tuple[int, ...] | None) -> bool:
    """Return whether NCCL can use the kernel's DMA-BUF. An NCCL of unknown version counts as new."""
    linux = numbers(release)[:2]
    return "Open Kernel Module" in driver and linux >= DMABUF[0] and (version or DMABUF[1]) >= DMABUF[1]


def _without_gpudirect(view: View) -> Mapping[str, str]:
    why, kernels, every = hca.unselected_ports(view), view.values(KERNEL), smis(view)
    for host, ports in hca.selected_ports(view).items():
        names = [gpu.name or "" for gpu in every[host].gpus] if host in every else []
        if not kernels.get(host, {}).get("gpus"):
            why[host] = "no GPU found"
        elif all(map(hca.is_efa, ports)):
            why[host] = "EFA reaches GPU memory by its own driver"
        elif names and all(any(model in name for model in NO_GPUDIRECT) for name in names):
            why[host] = f"{' and '.join(NO_GPUDIRECT)} have no GPUDirect RDMA"
    return why


# --- from the adapter to the other hosts -----------------------------------------------------------------------------


def _judge_route(view: View) -> Iterable[Finding]:
    """Report hosts that are cabled in pairs (a ring of three without a switch), if NCCL does not know it."""
    networks, settings = _networks_of_ports(view), hca.settings_of(view)
    silent = [host for host in networks if settings[host].get(BY_NETWORK, "0") != "1"]
    if silent and _are_paired(networks):
        yield report.warning(
            None,
            f"the RoCE ports of {', '.join(networks)} are cabled in pairs, each pair with a network of its own. NCCL "
            f"calls port 0 of a peer from its own port 0, which may be on another cable",
            fix=f"set `{BY_NETWORK}: 1` and `NCCL_NET_PLUGIN: none` in the inventory (`env:`)",
            evidence={"networks": {host: sorted(found) for host, found in networks.items()}},
        )


def _networks_of_ports(view: View) -> dict[str, set[str]]:
    """Return host -> the IPv4 networks of the RoCE ports that carry the job. A link-local address is in no network."""
    addresses = {host: network.addresses for host, network in networks_of(view).items()}
    found: dict[str, set[str]] = {}
    for host, ports in hca.selected_ports(view).items():
        interfaces = {gid["interface"] for port in ports if hca.is_roce(port) for gid in port["gids"]}
        mine = [
            ipaddress.ip_interface(f"{own.address}/{own.prefix}")
            for own in addresses.get(host, ())
            if own.interface in interfaces
        ]
        found[host] = {str(one.network) for one in mine if one.version == 4 and not one.is_link_local}
    return found


def _are_paired(networks: Mapping[str, set[str]]) -> bool:
    """Return whether each two hosts share a network, and all of them share no network."""
    found = list(networks.values())
    return len(found) > 2 and not set.intersection(*found) and all(one & other for one, other in combinations(found, 2))


CHECKS = (
    Check(
        "ib.use",
        "NCCL can use the adapters",
        _judge_use,
        ask=hca.ASK,
        cause="Ports are up, but NCCL does not use them: libibverbs or the adapter's driver for it is missing where "
        "the job runs, a container has no /dev/infiniband, NCCL_IB_DISABLE or NCCL_IB_HCA in a profile or nccl.conf "
        f"keeps it off, EFA has no {PLUGIN}.",
        symptom="NET/IB : No device found. Using network Socket; training at a tenth of its speed",
        fix="Pass the libraries and device nodes into the container; remove the settings from the profile.",
        seen=NO_HARDWARE,
        exempt=lambda view: {host: why for host, why in hca.unused_ports(view).items() if "keeps NCCL" not in why},
    ),
    Check(
        "ib.gpudirect",
        "the adapters reach GPU memory",
        _judge_gpudirect,
        ask=(*hca.ASK, *python.ASK_TORCH, KERNEL, PYTHON, SMI),
        cause="nvidia_peermem is not loaded and the driver has no DMA-BUF, or NCCL is older than 2.23 and looks for "
        "the module under its former name.",
        symptom="NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'; a tenth of the bandwidth between nodes",
        fix="`modprobe nvidia-peermem`, NVIDIA's open driver, or a newer NCCL.",
        seen=NO_HARDWARE,
        exempt=_without_gpudirect,
    ),
    Check(
        "ib.route",
        "NCCL finds the port that leads to each host",
        _judge_route,
        ask=(*hca.ASK, network_question),
        cause="Three hosts are a ring of cables without a switch, as DGX Sparks may be, so each pair of hosts has a "
        "network of its own. NCCL pairs ports by their number unless a variable tells it to look at the networks.",
        symptom="Call to ibv_modify_qp failed with 110 Connection timed out, in the first collective",
        fix=f"`{BY_NETWORK}=1`; the hosts meet in another network, which all of them share.",
        seen=NO_HARDWARE,
        exempt=hca.unselected_ports,
    ),
)
