"""Which rule of a host's firewall blocks a connection, and the command that lets it through.

Pure: it reads what the worker's ``firewall`` verb read, and prints commands; nothing here runs one.

The rules of nftables and of iptables are brought into one form (``Chain``, ``Rule``, ``Condition``) and a packet is
walked through them. What cannot be judged from the rules alone (a rate limit, an address set of the kernel) is
*uncertain*: it counts only when nothing certain explains what was seen.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ddpctl.checks.firewall import iptables, managers, nft
from ddpctl.checks.firewall.rules import BlockingRule, Chain, Packet, walk
from ddpctl.checks.firewall.tool import Dump, FirewallTool, Span, collapsed, joined, merged, sources

TOOLS = (managers.FIREWALLD, managers.UFW, iptables.IPTABLES, nft.NFT)  # a chain is of the first that owns it

__all__ = ["BlockingRule", "Packet", "blocking", "manager", "opening", "readable", "unread"]


def readable(dump: Dump) -> bool:
    """Whether the host's rules could be read (reading them takes root)."""
    return bool(dump) and any(dump.get(key) is not None for key in ("nft", "iptables"))


def unread(dump: Dump) -> str:
    """Why the rules of a host are not known."""
    if not dump:
        return "its firewall was not read"
    if dump.get("uid") != 0:
        return "its firewall can only be read by root (nor may this login read it with `sudo -n`)"
    said = next(iter(dump.get("errors", {}).values()), "neither nft nor iptables-save is installed")
    return f"its firewall could not be read: {said}"


def manager(dump: Dump) -> FirewallTool | None:
    """The program that manages this host's firewall and would undo a change that it does not know of."""
    return next((tool for tool in TOOLS if tool.manages and dump.get(tool.name)), None)


def blocking(dump: Dump, packet: Packet, hook: str, *, interface: str | None = None) -> tuple[BlockingRule, ...]:
    """Every base chain of the host that stops ``packet`` at ``hook`` ("input" or "output"), in the kernel's order.

    Each of them has to be opened: an accept in one chain does not spare the packet the next one.
    """
    if not readable(dump):
        return ()
    found = []
    for chain in _chains(dump, packet):
        verdict = walk(chain, packet, hook, interface) if chain.hook in _STATIONS[hook] else None
        if verdict is not None:
            tool = next(tool for tool in TOOLS if tool.owns(dump, chain, verdict))
            place = (chain.family, chain.table, chain.name)
            found.append(BlockingRule(tool.name, *place, verdict.text, verdict.certain, managers.zone(verdict)))
    return tuple(found)


_STATIONS = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}


def _chains(dump: Dump, packet: Packet) -> Iterable[Chain]:
    """The base chains that a packet of this family meets."""
    six = ipaddress.ip_address(packet.src).version == 6
    return _parsed(dump.get("nft"), dump.get("ip6tables" if six else "iptables"), six)


@lru_cache(maxsize=4096)  # thousands of connections may have failed at one host
def _parsed(ruleset: str | None, text: str | None, six: bool) -> tuple[Chain, ...]:
    """Tables that iptables made are read by iptables-save alone: nft shows them in part only."""
    found: list[Chain] = []
    if ruleset is not None:
        skip = ("ip6" if six else "ip") if text is not None else None
        for chain in nft.base_chains(json.loads(ruleset)):
            other = {"ip": six, "ip6": not six}.get(chain.family, False)
            if not other and not (chain.family == skip and chain.name.isupper()):
                found.append(chain)
    if text is not None:
        found += iptables.base_chains(text, "ip6" if six else "ip")
    return tuple(found)


def opening(
    dump: Dump,
    blocks: Sequence[BlockingRule],
    hook: str,
    peers: Sequence[str],
    ports: Sequence[Span],
    nets: Sequence[str] = (),
) -> tuple[str | None, str]:
    """The command that opens ``ports`` between this host and ``peers`` (addresses), for the firewall that it has, and
    what a person must know of it. ``nets``: the networks that the host itself is in.

    With ``blocks`` the very chains that block are opened; without (the rules could not be read) the command is for the
    manager that is known to run; None where nobody knows what to open.
    """
    spans = merged(ports)
    if not blocks:
        managing = manager(dump)
        if managing is None:
            traffic = f"TCP {', '.join(joined(span) for span in spans)} from {', '.join(peers)}"
            return None, f"allow {traffic}; as root, or where `sudo -n` may read the rules, ddpctl prints the command"
        blocks = (BlockingRule(managing.name, "inet", "", "", "", False),)
    allowed = sources(peers, nets)
    root = "" if dump.get("uid") == 0 else "sudo "
    exact = {source for family in (4, 6) for source in collapsed(peers, family)}
    wide = f"the command opens these ports to all of {', '.join(allowed)}, not to the nodes alone"
    lines: list[str] = []
    notes = [] if set(allowed) <= exact else [wide]
    for block in blocks:
        tool = next(tool for tool in TOOLS if tool.name == block.tool)
        lines += [root + line for line in tool.commands(block, hook, allowed, spans)]
        notes.append(tool.note(block, hook))
    return " && ".join(dict.fromkeys(lines)) or None, "; ".join(dict.fromkeys(notes))
