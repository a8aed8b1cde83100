"""The commands that open a firewall, limited to the given addresses and ports. Printed, never run."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from ddpctl.checks.rules import Block

Span = tuple[int, int]
_MULTIPORT = 15  # ports of one rule; a range counts twice
MOST_SOURCES = 8  # more than these are one rule for their whole network


def merged(ports: Iterable[Span]) -> tuple[Span, ...]:
    """Port spans in order, those that touch or overlap as one."""
    found: list[Span] = []
    for low, high in sorted(set(ports)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def sources(peers: Sequence[str], nets: Sequence[str] = ()) -> tuple[str, ...]:
    """Exactly these addresses, neighbours as prefixes. Where that leaves many, and all lie in one network that the host
    is in, that network: one rule in place of hundreds."""
    exact = tuple(source for family in (4, 6) for source in collapsed(peers, family))
    if len(exact) > MOST_SOURCES:
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


def lines(block: Block, hook: str, allowed: Sequence[str], spans: Sequence[Span], root: str) -> list[str]:
    """The command lines for the firewall that blocks; none where it takes more than a command."""
    make = {"nft": _nft, "iptables": _iptables, "ufw": _ufw, "firewalld": _firewalld}[block.tool]
    found: list[str] = []
    for family in (4, 6):
        own = [source for source in allowed if ipaddress.ip_network(source).version == family]
        if own:
            found += make(block, hook, own, spans, family)
    if found and block.tool == "firewalld":
        found.append("firewall-cmd --reload")
    return [root + line for line in found]


def notes(block: Block, hook: str, allowed: Sequence[str], peers: Sequence[str]) -> list[str]:
    """What the command does not say."""
    found = []
    exact = {source for family in (4, 6) for source in collapsed(peers, family)}
    if not set(allowed) <= exact:
        found.append(f"the command opens these ports to all of {', '.join(allowed)}, not to the nodes alone")
    if block.tool in ("nft", "iptables"):
        where = "/etc/nftables.conf" if block.tool == "nft" else "the rules that this machine loads (iptables-save)"
        found.append(f"it is gone after a reboot: write it into {where} too")
    if block.tool == "firewalld" and hook == "output":
        found.append(f"{block.chain} of firewalld stops what goes out: change that policy or direct rule by hand")
    elif block.tool == "firewalld":
        found.append("the reload drops what was only set until the next one")
    return found or ["ufw keeps it over a reboot"]


def joined(span: Span, by: str = "-") -> str:
    """``29500`` or ``32768-60999``."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]}{by}{span[1]}"


def _braces(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else "{ " + ", ".join(words) + " }"


def _nft(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    """At the head of the base chain: an accept there ends that chain, before whatever drops."""
    side = "saddr" if hook == "input" else "daddr"
    protocol = "ip" if family == 4 else "ip6"
    ports = _braces([joined(span) for span in spans])
    rule = f"{protocol} {side} {_braces(sources)} tcp dport {ports} accept"
    return [f"nft 'insert rule {block.family} {block.table} {block.chain} {rule}'"]


def _iptables(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    program = "iptables" if family == 4 else "ip6tables"
    side = "-s" if hook == "input" else "-d"
    table = "" if block.table == "filter" else f"-t {block.table} "
    return [
        f"{program} -w 5 {table}-I {block.chain} 1 -p tcp {side} {','.join(sources)} "
        f"-m multiport --dports {','.join(joined(span, ':') for span in part)} -j ACCEPT"
        for part in _parts(spans)
    ]


def _ufw(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    """``insert 1`` for IPv4 only: ufw numbers IPv6 rules after all IPv4 ones; prepend works for both."""
    found = []
    for source in sources:
        for part in _parts(spans):
            ports = ",".join(joined(span, ":") for span in part)
            if hook == "input":
                found.append(f"ufw prepend allow proto tcp from {source} to any port {ports}")
            else:
                found.append(f"ufw prepend allow out proto tcp to {source} port {ports}")
    return found


def _firewalld(block: Block, hook: str, sources: Sequence[str], spans: Sequence[Span], family: int) -> list[str]:
    """Rich rules of a zone are for what comes in; without ``--zone`` they would go into the default zone."""
    if hook != "input":
        return []
    zone = f" --zone={block.zone}" if block.zone else ""
    return [
        f'firewall-cmd --permanent{zone} --add-rich-rule=\'rule family="ipv{family}" source address="{source}" '
        f'port port="{joined(span)}" protocol="tcp" accept\''
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
