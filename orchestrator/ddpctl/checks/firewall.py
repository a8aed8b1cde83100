"""Which rule of a host's firewall blocks a connection, and the command that lets it through.

Pure: it reads what the worker's ``firewall`` verb read, and prints commands; nothing here runs one.

The rules of nftables and of iptables are brought into one form (``Chain``, ``Rule``, ``Condition``) and a packet is
walked through them. What cannot be judged from the rules alone (a rate limit, an address set of the kernel) is
*uncertain*: it counts only when nothing certain explains what was seen.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ddpctl.checks import firewall_fix, iptables, nftables
from ddpctl.checks.rules import POLICY, Block, Chain, Packet, Rule, Verdict, walk

Dump = Mapping[str, Any]
Span = tuple[int, int]

__all__ = ["Block", "Chain", "Packet", "Rule", "blocking", "manager", "opening", "readable", "unread"]


def readable(dump: Dump) -> bool:
    """Whether the host's rules could be read (reading them takes root)."""
    return bool(dump) and any(dump.get(key) is not None for key in ("nft", "iptables"))


def unread(dump: Dump) -> str:
    """Why the rules of a host are not known."""
    if not dump:
        return "its firewall could not be asked for"
    if dump.get("uid") != 0:
        return "its firewall can only be read by root (nor may this login read it with `sudo -n`)"
    said = next(iter(dump.get("errors", {}).values()), "neither nft nor iptables-save is there")
    return f"its firewall could not be read: {said}"


def manager(dump: Dump) -> str | None:
    """The program that manages this host's firewall and would undo a change that it does not know of."""
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
                    zone=_zone(verdict),
                )
            )
    return tuple(found)


def _zone(verdict: Verdict) -> str | None:
    """The zone of firewalld whose chain the packet went through (``filter_IN_public``, older: ``IN_public``)."""
    found = (re.fullmatch(r"(?:filter_)?IN_(?!policy_)(.+)", name) for name in verdict.visited)
    return next((match.group(1) for match in found if match), None)


_STATIONS = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}


def _chains(dump: Dump, packet: Packet) -> Iterable[Chain]:
    """The base chains that a packet of this family meets."""
    six = ipaddress.ip_address(packet.src).version == 6
    return _parsed(dump.get("nft"), dump.get("ip6tables" if six else "iptables"), six)


@lru_cache(maxsize=4096)  # thousands of connections may have failed at one host
def _parsed(nft: str | None, text: str | None, six: bool) -> tuple[Chain, ...]:
    """Tables that iptables made are read by iptables-save alone: nft shows them in part only."""
    found: list[Chain] = []
    if nft is not None:
        skip = ("ip6" if six else "ip") if text is not None else None
        for chain in nftables.base_chains(json.loads(nft)):
            other = {"ip": six, "ip6": not six}.get(chain.family, False)
            if not other and not (chain.family == skip and chain.name.isupper()):
                found.append(chain)
    if text is not None:
        found += iptables.base_chains(text, "ip6" if six else "ip")
    return tuple(found)


def _tool(dump: Dump, chain: Chain, verdict: Verdict) -> str:
    """Who made the chain that blocks. A rule put before ufw's own chains is none of ufw's, and it cannot undo it."""
    if chain.table == "firewalld" or (manager(dump) == "firewalld" and chain.iptables):
        return "firewalld"
    own = any(name.startswith(("ufw-", "ufw6-")) for name in verdict.path) or verdict.text == POLICY
    if manager(dump) == "ufw" and chain.iptables and own:
        return "ufw"
    return "iptables" if chain.iptables else "nft"


def opening(
    dump: Dump,
    blocks: Sequence[Block],
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
    spans = firewall_fix.merged(ports)
    wanted = f"TCP {', '.join(firewall_fix.joined(span) for span in spans)} from {', '.join(peers)}"
    if not blocks:
        name = manager(dump)
        if name is None:
            return None, f"let in {wanted}; as root, or where `sudo -n` may read the rules, ddpctl prints the command"
        blocks = (Block(name, "inet", "", "", "", False),)
    sources = firewall_fix.sources(peers, nets)
    root = "" if dump.get("uid") == 0 else "sudo "
    lines: list[str] = []
    for block in blocks:
        lines += firewall_fix.lines(block, hook, sources, spans, root)
    notes = [note for block in blocks for note in firewall_fix.notes(block, hook, sources, peers)]
    return " && ".join(dict.fromkeys(lines)) or None, "; ".join(dict.fromkeys(notes))
