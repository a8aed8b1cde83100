"""Finds the rule of a host's firewall that blocks a connection, and the command that lets the connection through.

Pure: the input is the output of the worker's ``firewall`` verb; the commands are printed, not run.

The rules of nftables and iptables are turned into a common form (``Chain``, ``Rule``, ``Condition``), and a packet
walks through them. A condition that the rules alone cannot decide (a rate limit, an address set of the kernel) makes a
block *uncertain*: it counts only when no certain block explains the failure.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ddpctl.checks.firewall import iptables, managers, nft
from ddpctl.checks.firewall.rules import BlockingRule, Chain, Packet, walk
from ddpctl.checks.firewall.tool import Dump, FirewallTool, Span, collapse_sources, join_spans, merge_spans, sources

TOOLS = (managers.FIREWALLD, managers.UFW, iptables.IPTABLES, nft.NFT)  # a chain belongs to the first tool that owns it

__all__ = ["BlockingRule", "Packet", "blocking", "manager", "opening", "readable", "unread"]


def is_readable(dump: Dump) -> bool:
    """Return whether the host's rules could be read, which takes root."""
    return bool(dump) and any(dump.get(key) is not None for key in ("nft", "iptables"))


def why_unread(dump: Dump) -> str:
    """Return why the rules of a host are not known."""
    if not dump:
        return "its firewall was not read"
    if dump.get("uid") != 0:
        return "its firewall can only be read by root (nor may this login read it with `sudo -n`)"
    said = next(iter(dump.get("errors", {}).values()), "neither nft nor iptables-save is installed")
    return f"its firewall could not be read: {said}"


def manager(dump: Dump) -> FirewallTool | None:
    """Return the program that manages the host's firewall, and would undo a change made without it."""
    return next((tool for tool in TOOLS if tool.manages and dump.get(tool.name)), None)


def find_blocks(dump: Dump, packet: Packet, hook: str, *, interface: str | None = None) -> tuple[BlockingRule, ...]:
    """Return every base chain of the host that stops ``packet`` at a hook ("input" or "output"), in the kernel's order.

    Each of these chains has to be opened: after an accept in a chain the packet still passes the next.
    """
    if not is_readable(dump):
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
    """Return the base chains that a packet of this family meets."""
    six = ipaddress.ip_address(packet.src).version == 6
    return _parsed(dump.get("nft"), dump.get("ip6tables" if six else "iptables"), six)


@lru_cache(maxsize=4096)  # thousands of connections may have failed at a host
def _parsed(ruleset: str | None, text: str | None, six: bool) -> tuple[Chain, ...]:
    """Parse the rules. Tables made by iptables are read from iptables-save alone: nft shows them only in part."""
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


def opening_commands(
    dump: Dump,
    blocks: Sequence[BlockingRule],
    hook: str,
    peers: Sequence[str],
    ports: Sequence[Span],
    nets: Sequence[str] = (),
) -> tuple[str | None, str]:
    """Return the command that opens ``ports`` between this host and ``peers`` (addresses), and a note for the user.

    With ``blocks``, the command opens exactly the chains that block. Without them (the rules could not be read), it is
    for the manager that runs on the host, if there is a manager. ``nets``: the networks that the host is in.
    """
    spans = merge_spans(ports)
    if not blocks:
        managing = manager(dump)
        if managing is None:
            traffic = f"TCP {', '.join(join_spans(span) for span in spans)} from {', '.join(peers)}"
            return None, f"allow {traffic}; as root, or where `sudo -n` may read the rules, ddpctl prints the command"
        blocks = (BlockingRule(managing.name, "inet", "", "", "", False),)
    allowed = sources(peers, nets)
    root = "" if dump.get("uid") == 0 else "sudo "
    exact = {source for family in (4, 6) for source in collapse_sources(peers, family)}
    wide = f"the command opens these ports to all of {', '.join(allowed)}, not to the nodes alone"
    lines: list[str] = []
    notes = [] if set(allowed) <= exact else [wide]
    for block in blocks:
        tool = next(tool for tool in TOOLS if tool.name == block.tool)
        lines += [root + line for line in tool.commands(block, hook, allowed, spans)]
        notes.append(tool.note(block, hook))
    return " && ".join(dict.fromkeys(lines)) or None, "; ".join(dict.fromkeys(notes))
