"""The InfiniBand, RoCE and EFA ports that the job uses, from NCCL's final settings. This module judges nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpctl.checks import env, python
from ddpctl.checks.base import View
from ddpctl.checks.gpu.in_use import uses_gloo
from ddpctl.checks.limits import ADAPTERS_S
from ddpctl.spec.nvidia import numbers
from ddpctl.spec.question import Question

PORTS = Question("infiniband", deadline=ADAPTERS_S)
ASK = (PORTS, env.question)
Port = Mapping[str, Any]


def is_active(port: Port) -> bool:
    """Return whether the state is ``4: ACTIVE``."""
    return "ACTIVE" in str(port["state"]).upper()


def is_efa(port: Port) -> bool:
    """Return whether the port is Amazon's EFA, which NCCL uses only through a plugin."""
    return port.get("driver") == "efa" or str(port["link_layer"]) == "Unspecified"


def is_roce(port: Port) -> bool:
    return str(port["link_layer"]) == "Ethernet"


def label(port: Port) -> str:
    return f"{port['device']} port {port['port']}"


def selects(chosen: str, port: Port) -> bool:
    """Return whether NCCL_IB_HCA lets NCCL use a port.

    The value is a list of prefixes (``mlx5_0:1,mlx5_1``). A leading ``=`` asks for whole names, a leading ``^``
    excludes the listed ports.
    """
    if not chosen:
        return True
    without, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    matched = any(_matches(part, port, exact) for part in chosen.lstrip("^").lstrip("=").split(",") if part)
    return matched != without


def _matches(part: str, port: Port, exact: bool) -> bool:
    name, _, number = part.partition(":")
    same = port["device"] == name if exact else str(port["device"]).startswith(name)
    return same and (not number or number == str(port["port"]))


def is_named(chosen: str, port: Port) -> bool:
    """Return whether NCCL_IB_HCA names exactly this device; a prefix such as ``mlx5`` does not."""
    if chosen.startswith("^"):
        return False
    return any(_matches(part, port, exact=True) for part in chosen.lstrip("=").split(",") if part)


def switch(settings: Mapping[str, str]) -> str | None:
    """Return the setting that keeps NCCL off InfiniBand and RoCE, if there is such a setting."""
    disable = settings.get("NCCL_IB_DISABLE", "")
    if re.fullmatch(r"\s*[-+]?0*[1-9]\d*.*", disable):
        return f"NCCL_IB_DISABLE={disable}"
    if settings.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={settings['NCCL_NET']}"
    return None


def settings_of(view: View) -> dict[str, dict[str, str]]:
    """Return host -> NCCL's settings."""
    return {target.name: env.nccl_settings(view, target) for target in view.targets}


def ports_of(view: View) -> dict[str, list[Port]]:
    """Return host -> all ports of the host."""
    return {host: list(value["ports"]) for host, value in view.values(PORTS).items()}


def used_ports(view: View) -> dict[str, list[Port]]:
    """Return host -> the ports, up or down, that NCCL may use for the job. Hosts without such a port are left out."""
    if uses_gloo(view):
        return {}
    settings = settings_of(view)
    found = {host: [port for port in ports if _uses(settings[host], port)] for host, ports in ports_of(view).items()}
    return {host: ports for host, ports in found.items() if ports}


def _uses(settings: Mapping[str, str], port: Port) -> bool:
    if is_efa(port):  # the plugin reads neither of these two variables
        return settings.get("NCCL_NET", "").lower() != "socket"
    return switch(settings) is None and selects(settings.get("NCCL_IB_HCA", ""), port)


def active_used_ports(view: View) -> dict[str, list[Port]]:
    """Return host -> the active ports of ``used``."""
    found = {host: [port for port in ports if is_active(port)] for host, ports in used_ports(view).items()}
    return {host: ports for host, ports in found.items() if ports}


def unused_ports(view: View) -> dict[str, str]:
    """Return the hosts with ports that the job does not use, each with the reason."""
    ports, settings = ports_of(view), settings_of(view)
    gone, mine = env.without_nccl(view), used_ports(view)
    found: dict[str, str] = {}
    for host in ports:
        if not ports[host]:
            found[host] = "no InfiniBand, RoCE or EFA adapter found"
        elif host in gone:
            found[host] = gone[host]
        elif host not in mine:
            found[host] = f"{switch(settings[host]) or 'NCCL_IB_HCA'} keeps NCCL off the adapters"
    return found


def selected_ports(view: View) -> dict[str, list[Port]]:
    """Return host -> the ports that carry the job: up, opened by libibverbs, and the fastest of these.

    A slower port beside them is the Ethernet of a virtual machine, or leads to the storage.
    """
    opened = {host: value.get("verbs") for host, value in view.values(PORTS).items()}
    found = {
        host: fastest_ports(
            [port for port in ports if opened[host] is None or port["device"] in opened[host]["devices"]]
        )
        for host, ports in active_used_ports(view).items()
    }
    return {host: ports for host, ports in found.items() if ports}


def unselected_ports(view: View) -> dict[str, str]:
    """Return the hosts without a port in ``in_use``, with the reason."""
    mine, up, gone = selected_ports(view), active_used_ports(view), unused_ports(view)
    return {
        host: gone.get(host)
        or ("NCCL cannot open the adapters, see ib.use" if host in up else "no port that the job uses is up")
        for host in ports_of(view)
        if host not in mine
    }


def nccl_versions(view: View) -> dict[str, tuple[int, ...]]:
    """Return host -> version of the NCCL that torch loads, where it is known."""
    loaded = {host: value.get("nccl_runtime") for host, value in python.imports(view).items()}
    installed = {host: value["nccl"] for host, value in python.versions(view).items()}
    texts = {host: loaded.get(host) or installed.get(host) for host in {**installed, **loaded}}
    return {host: numbers(text)[:3] for host, text in texts.items() if text}


def rate(port: Port) -> float:
    """Return the speed in Gb/s; 0 if the kernel does not report it."""
    match = re.match(r"[\d.]+", port["rate"])
    return float(match.group()) if match else 0.0


def fastest_ports(ports: Sequence[Port]) -> list[Port]:
    """Return the ports that NCCL prefers."""
    most = max(map(rate, ports), default=0.0)
    return [port for port in ports if rate(port) == most]


def summary(ports: Iterable[Port]) -> str:
    """Return the ports as ``8x400 + 1x100 Gb/s``."""
    kinds = Counter(map(rate, ports))
    return " + ".join(f"{count}x{speed:g}" for speed, count in sorted(kinds.items(), reverse=True)) + " Gb/s"
