"""What there is to know of a firewall tool: which chains are its own, and the commands that open them.

A new tool is a file with a ``FirewallTool`` in it, and its place in ``TOOLS``. The commands are printed, never run.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks.firewall.rules import Blocked, BlockingRule, Chain
from ddpctl.checks.limits import MULTIPORT_PORTS, SOURCES

Dump = Mapping[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True)
class Opening:
    """What is to be let through: TCP on these ports, to or from (``hook`` "output" or "input") these addresses and
    networks, all of one family (4 or 6)."""

    hook: str
    sources: tuple[str, ...]
    spans: tuple[Span, ...]
    family: int


@dataclass(frozen=True)
class FirewallTool:
    """``owns``: whether the tool made the chain that blocks. ``lines``: its commands, without sudo; none where it takes
    more than a command. ``last``: what ends them. ``note``: what a person must know, by hook.

    ``manages``: it would undo a change that it does not know of. Its name is then its mark in a host's dump.
    """

    name: str
    owns: Callable[[Dump, Chain, Blocked], bool]
    lines: Callable[[BlockingRule, Opening], list[str]]
    note: Callable[[BlockingRule, str], str]
    last: str | None = None
    manages: bool = False

    def commands(self, block: BlockingRule, hook: str, allowed: Sequence[str], spans: tuple[Span, ...]) -> list[str]:
        """What opens the block, in the order in which it is run."""
        found: list[str] = []
        for family in (4, 6):
            own = tuple(source for source in allowed if ipaddress.ip_network(source).version == family)
            found += self.lines(block, Opening(hook, own, spans, family)) if own else []
        return [*found, self.last] if found and self.last else found


# --- ports and addresses ---------------------------------------------------------------------------------------------


def joined(span: Span, by: str = "-") -> str:
    """``29500`` or ``32768-60999``."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]}{by}{span[1]}"


def merged(ports: Iterable[Span]) -> tuple[Span, ...]:
    """Port spans in order, those that touch or overlap as one."""
    found: list[Span] = []
    for low, high in sorted(set(ports)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def portions(spans: Sequence[Span]) -> list[str]:
    """Spans as the lists that one multiport rule takes each: ``29500,32768:60999``."""
    parts: list[list[str]] = [[]]
    room = MULTIPORT_PORTS
    for span in spans:
        cost = 1 if span[0] == span[1] else 2
        if cost > room:
            parts.append([])
            room = MULTIPORT_PORTS
        parts[-1].append(joined(span, ":"))
        room -= cost
    return [",".join(part) for part in parts]


def sources(peers: Sequence[str], nets: Sequence[str] = ()) -> tuple[str, ...]:
    """Exactly these addresses, neighbours as prefixes. Where that leaves many, and all lie in one network that the host
    is in, that network: one rule in place of hundreds."""
    exact = tuple(source for family in (4, 6) for source in collapsed(peers, family))
    if len(exact) > SOURCES:
        addresses = [ipaddress.ip_address(peer) for peer in peers]
        for net in (ipaddress.ip_network(text, strict=False) for text in nets):
            if all(address.version == net.version and address in net for address in addresses):
                return (str(net),)
    return exact


def collapsed(peers: Sequence[str], family: int) -> tuple[str, ...]:
    """Exactly these addresses of one family, neighbours as prefixes; nothing beside them is let in."""
    own = [ipaddress.ip_network(peer) for peer in dict.fromkeys(peers)]
    nets = ipaddress.collapse_addresses([net for net in own if net.version == family])  # type: ignore[type-var]
    return tuple(str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net) for net in nets)
