"""The description of a firewall tool: the chains that it owns, and the commands that open them.

A new tool is a file with a ``FirewallTool``, and an entry in ``TOOLS``. The commands are printed, never run.
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
    """Traffic to let through: TCP on these ports, of an address family (4 or 6).

    ``sources`` are addresses and networks: the peers that connect (``hook`` "input") or the peers to connect to
    ("output").
    """

    hook: str
    sources: tuple[str, ...]
    spans: tuple[Span, ...]
    family: int


@dataclass(frozen=True)
class FirewallTool:
    """A tool that makes firewall rules.

    - ``owns``: whether the tool made the chain that blocks.
    - ``lines``: its commands, without sudo; empty if a command alone is not enough.
    - ``last``: the command that ends them.
    - ``note``: a note for the user, by hook.
    - ``manages``: the tool would undo a change made without it. Its name is then its key in a host's dump.
    """

    name: str
    owns: Callable[[Dump, Chain, Blocked], bool]
    lines: Callable[[BlockingRule, Opening], list[str]]
    note: Callable[[BlockingRule, str], str]
    last: str | None = None
    manages: bool = False

    def commands(self, block: BlockingRule, hook: str, allowed: Sequence[str], spans: tuple[Span, ...]) -> list[str]:
        """Return the commands that open the block, in the order in which they run."""
        found: list[str] = []
        for family in (4, 6):
            own = tuple(source for source in allowed if ipaddress.ip_network(source).version == family)
            found += self.lines(block, Opening(hook, own, spans, family)) if own else []
        return [*found, self.last] if found and self.last else found


# --- ports and addresses ---------------------------------------------------------------------------------------------


def join_spans(span: Span, by: str = "-") -> str:
    """Return a span as ``29500`` or ``32768-60999``."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]}{by}{span[1]}"


def merge_spans(ports: Iterable[Span]) -> tuple[Span, ...]:
    """Return port spans in order, with touching and overlapping spans merged."""
    found: list[Span] = []
    for low, high in sorted(set(ports)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def portions(spans: Sequence[Span]) -> list[str]:
    """Return spans as port lists that fit into a multiport rule each: ``29500,32768:60999``."""
    parts: list[list[str]] = [[]]
    room = MULTIPORT_PORTS
    for span in spans:
        cost = 1 if span[0] == span[1] else 2
        if cost > room:
            parts.append([])
            room = MULTIPORT_PORTS
        parts[-1].append(join_spans(span, ":"))
        room -= cost
    return [",".join(part) for part in parts]


def sources(peers: Sequence[str], nets: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the addresses, with neighbours as prefixes.

    If more than SOURCES remain and a network of the host contains all, return that network: a rule instead of hundreds.
    """
    exact = tuple(source for family in (4, 6) for source in collapse_sources(peers, family))
    if len(exact) > SOURCES:
        addresses = [ipaddress.ip_address(peer) for peer in peers]
        for net in (ipaddress.ip_network(text, strict=False) for text in nets):
            if all(address.version == net.version and address in net for address in addresses):
                return (str(net),)
    return exact


def collapse_sources(peers: Sequence[str], family: int) -> tuple[str, ...]:
    """Return exactly these addresses of a family, with neighbours as prefixes."""
    own = [ipaddress.ip_network(peer) for peer in dict.fromkeys(peers)]
    nets = ipaddress.collapse_addresses([net for net in own if net.version == family])  # type: ignore[type-var]
    return tuple(str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net) for net in nets)
