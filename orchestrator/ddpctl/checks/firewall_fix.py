"""The commands that open a firewall, limited to the given addresses and ports. Printed, never run."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from ddpctl.checks.rules import Block

Span = tuple[int, int]
_MULTIPORT = 15  # ports of one rule; a range counts twice


def merged(ports: Iterable[Span]) -> tuple[Span, ...]:
    """Port spans in order, those that touch or overlap as one."""
    found: list[Span] = []
    for low, high in sorted(set(ports)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def collapsed(peers: Sequence[str], family: int) -> tuple[str, ...]:
    """Exactly these addresses of one family, neighbours as prefixes; nothing beside them is let in."""
    own = [ipaddress.ip_network(peer) for peer in dict.fromkeys(peers)]
    nets = ipaddress.collapse_addresses([net for net in own if net.version == family])  # type: ignore[type-var]
    return tuple(str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net) for net in nets)


def lines(block: Block, hook: str, peers: Sequence[str], spans: Sequence[Span], root: str) -> list[str]:
    """The command lines for the firewall that blocks."""
    make = {"nft": _nft, "iptables": _iptables, "ufw": _ufw, "firewalld": _firewalld}[block.tool]
    found: list[str] = []
    for family in (4, 6):
        sources = collapsed(peers, family)
        if sources:
            found += make(block, hook, sources, spans, family)
    if block.tool == "firewalld":
        found.append("firewall-cmd --reload")
    return [root + line for line in found]


def unknown(peers: Sequence[str], spans: Sequence[Span]) -> str:
    """When the rules could not be read."""
    ports = ", ".join(_joined(span, "-") for span in spans)
    return (
        f"see what blocks with `sudo nft list ruleset` or `sudo iptables-save`, and let in TCP {ports} "
        f"from {', '.join(peers)} (as root, ddpctl reads the rules itself and prints the command)"
    )


def _joined(span: Span, by: str) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}{by}{span[1]}"


def _braces(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else "{ " + ", ".join(words) + " }"


def _nft(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    """At the head of the base chain: an accept there ends that chain, before whatever drops."""
    side = "saddr" if hook == "input" else "daddr"
    protocol = "ip" if family == 4 else "ip6"
    ports = _braces([_joined(span, "-") for span in spans])
    rule = f"{protocol} {side} {_braces(sources)} tcp dport {ports} accept"
    return [f"nft 'insert rule {block.family} {block.table} {block.chain} {rule}'"]


def _iptables(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    program = "iptables" if family == 4 else "ip6tables"
    side = "-s" if hook == "input" else "-d"
    table = "" if block.table == "filter" else f"-t {block.table} "
    return [
        f"{program} -w 5 {table}-I {block.chain} 1 -p tcp {side} {','.join(sources)} "
        f"-m multiport --dports {','.join(_joined(span, ':') for span in part)} -j ACCEPT"
        for part in _parts(spans)
    ]


def _ufw(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    """``insert 1`` for IPv4 only: ufw numbers IPv6 rules after all IPv4 ones; prepend works for both."""
    found = []
    for source in sources:
        for part in _parts(spans):
            ports = ",".join(_joined(span, ":") for span in part)
            if hook == "input":
                found.append(f"ufw prepend allow proto tcp from {source} to any port {ports}")
            else:
                found.append(f"ufw prepend allow out proto tcp to {source} port {ports}")
    return found


def _firewalld(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    side = "source" if hook == "input" else "destination"
    return [
        f'firewall-cmd --permanent --add-rich-rule=\'rule family="ipv{family}" {side} address="{source}" '
        f'port port="{_joined(span, "-")}" protocol="tcp" accept\''
        for source in sources
        for span in spans
    ]


def _parts(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in portions that one multiport rule takes."""
    parts: list[list[Span]] = [[]]
    room = _MULTIPORT
    for span in spans:
        cost = 1 if span[0] == span[1] else 2
        if cost > room:
            parts.append([])
            room = _MULTIPORT
        parts[-1].append(span)
        room -= cost
    return parts
