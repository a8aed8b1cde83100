"""Which rule of a host's firewall blocks a connection, and the exact command that lets it through.

Pure: it reads what the worker's ``firewall`` verb read, and prints commands; nothing here runs one.

The rules of nftables and of iptables are brought into one form (``Chain``, ``Rule``, ``Condition``) and a packet is
walked through them. What cannot be judged from the rules alone (a rate limit, an address set of the kernel) is
*uncertain*: it counts only when nothing certain explains what was seen.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpctl.checks import firewall_fix, iptables, nftables
from ddpctl.checks.rules import POLICY, Block, Chain, Packet, Rule, Verdict, walk

Dump = Mapping[str, Any]
Span = tuple[int, int]

__all__ = ["Block", "Chain", "Packet", "Rule", "blocking", "fix", "manager", "readable"]


def readable(dump: Dump) -> bool:
    """Whether the host's rules could be read (reading them takes root)."""
    return bool(dump) and any(dump.get(key) is not None for key in ("nft", "iptables"))


def manager(dump: Dump) -> str | None:
    """The program that manages this host's firewall and would undo what is changed behind its back."""
    if dump.get("firewalld"):
        return "firewalld"
    if dump.get("ufw"):
        return "ufw"
    return None


def blocking(dump: Dump, packet: Packet, hook: str, *, interface: str | None = None) -> tuple[Block, ...]:
    """Every base chain of the host that stops ``packet`` at ``hook`` ("input" or "output"), in the kernel's order.

    Each of them has to be opened: an accept in one chain does not spare the packet the next one.
    """
    if not readable(dump):
        return ()
    found = []
    for chain in _chains(dump, packet):
        if chain.hook not in _STATIONS[hook]:
            continue
        verdict = walk(chain, packet, hook, interface)
        if verdict is not None:
            found.append(
                Block(
                    tool=_tool(dump, chain, verdict),
                    family=chain.family,
                    table=chain.table,
                    chain=chain.name,
                    rule=verdict.text,
                    certain=verdict.certain,
                )
            )
    return tuple(found)


_STATIONS = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}


def _chains(dump: Dump, packet: Packet) -> Iterable[Chain]:
    """The base chains that a packet of this family meets. Tables that iptables made are read by iptables-save alone:
    nft shows them in part only."""
    six = ipaddress.ip_address(packet.src).version == 6
    text = dump.get("ip6tables" if six else "iptables")
    if dump.get("nft") is not None:
        skip = ("ip6" if six else "ip") if text is not None else None
        for chain in nftables.base_chains(json.loads(dump["nft"])):
            other = {"ip": six, "ip6": not six}.get(chain.family, False)
            if not other and not (chain.family == skip and chain.name.isupper()):
                yield chain
    if text is not None:
        yield from iptables.base_chains(text, "ip6" if six else "ip")


def _tool(dump: Dump, chain: Chain, verdict: Verdict) -> str:
    """Who made the chain that blocks. A rule put before ufw's own chains is none of ufw's, and it cannot undo it."""
    if chain.table == "firewalld" or (manager(dump) == "firewalld" and chain.iptables):
        return "firewalld"
    own = any(name.startswith(("ufw-", "ufw6-")) for name in verdict.path) or verdict.text == POLICY
    if manager(dump) == "ufw" and chain.iptables and own:
        return "ufw"
    return "iptables" if chain.iptables else "nft"


def fix(dump: Dump, blocks: Sequence[Block], hook: str, peers: Sequence[str], ports: Sequence[Span]) -> str:
    """The command that opens ``ports`` between this host and ``peers`` (addresses), for the firewall that it has.

    With ``blocks`` the very chains that block are opened; without (the rules could not be read) the command is for the
    manager that is known to run, or for nft.
    """
    spans = firewall_fix.merged(ports)
    root = "" if dump.get("uid") == 0 else "sudo "
    if not blocks:
        name = manager(dump)
        if name is None:
            return firewall_fix.unknown(peers, spans)
        blocks = (Block(name, "inet", "", "", "", False),)
    lines: list[str] = []
    for block in blocks:
        lines += firewall_fix.lines(block, hook, peers, spans, root)
    return " && ".join(dict.fromkeys(lines))
