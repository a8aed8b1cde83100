"""The common form of firewall rules, and a packet's walk through them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.checks.limits import CHAIN_DEPTH, CHAIN_JUMPS

ACCEPT, DROP, REJECT, RETURN, JUMP, GOTO = "accept", "drop", "reject", "return", "jump", "goto"
VERDICTS = frozenset({ACCEPT, DROP, REJECT, RETURN, JUMP, GOTO})
STOPS = frozenset({DROP, REJECT})
POLICY = "policy drop"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Packet:
    """A TCP packet: the first packet of a connection (``state`` "new") or a reply ("established")."""

    src: str
    dst: str
    sport: int
    dport: int
    state: str = "new"


@dataclass(frozen=True)
class Condition:
    """A match of a rule.

    Keys: saddr and daddr (values: networks), sport and dport (values: port spans), proto, iif, oif, state and family
    (values: words), syn, reply_route. A condition with any other key cannot be decided.
    """

    key: str
    values: tuple[Any, ...] = ()
    negate: bool = False

    def test(self, packet: Packet, interfaces: Mapping[str, str | None]) -> bool | None:
        """Return whether the packet matches; None if that cannot be decided."""
        found = self._test(packet, interfaces)
        return None if found is None else found != self.negate

    def _test(self, packet: Packet, interfaces: Mapping[str, str | None]) -> bool | None:
        if self.key in ("saddr", "daddr"):
            address = ipaddress.ip_address(packet.src if self.key == "saddr" else packet.dst)
            return any(address.version == net.version and address in net for net in self.values)
        if self.key in ("sport", "dport"):
            port = packet.sport if self.key == "sport" else packet.dport
            return any(low <= port <= high for low, high in self.values)
        if self.key in ("iif", "oif"):
            return _interface_matches(interfaces.get(self.key), self.values)
        if self.key == "proto":
            return bool({"tcp", "6", "all", "0"} & set(self.values))
        if self.key == "state":
            return packet.state in self.values
        if self.key == "family":
            version = ipaddress.ip_address(packet.src).version
            return ("ipv4" if version == 4 else "ipv6") in self.values
        if self.key == "syn":
            return packet.state == "new"
        # rpfilter: replies to the peer have a route, or mesh.route would have reported it
        if self.key == "reply_route":
            return True
        return None


def _interface_matches(name: str | None, patterns: tuple[str, ...]) -> bool | None:
    """Return whether an interface matches, if the interface is known.

    ``eth*`` (nft) and ``eth+`` (iptables) match by prefix.
    """
    if name is None:
        return False if patterns == ("lo",) else None
    return any(name == p or (p[-1:] in "*+" and name.startswith(p[:-1])) for p in patterns if p)


@dataclass(frozen=True)
class Rule:
    """A rule of a chain. Its ``verdict`` applies if all conditions hold.

    Without a verdict the rule only counts, logs or marks. ``target`` is the chain of a jump. ``branches`` is a verdict
    map: the first entry with a condition that holds decides.
    """

    conditions: tuple[Condition, ...]
    verdict: str | None
    text: str
    target: str | None = None
    branches: tuple[tuple[Condition, str, str | None], ...] = ()


@dataclass(frozen=True)
class Chain:
    """A base chain and, in ``others``, the chains of its table that it may jump to."""

    family: str
    table: str
    name: str
    hook: str
    policy: str
    rules: tuple[Rule, ...]
    others: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    iptables: bool = False


@dataclass(frozen=True)
class Blocked:
    """The result of a walk that stopped a packet.

    ``text`` is the deciding rule, ``path`` the chains that led to it, ``visited`` all chains that the packet met.
    ``certain`` is False if a condition on the way could not be decided.
    """

    text: str
    certain: bool
    path: tuple[str, ...]
    visited: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockingRule:
    """A base chain that stops a packet, with the rule that does it. ``zone``: firewalld's zone of the packet."""

    tool: str
    family: str
    table: str
    chain: str
    rule: str
    certain: bool
    zone: str | None = None

    @property
    def place(self) -> str:
        if self.tool == "iptables":
            return f"table {self.table}, chain {self.chain}"
        return f"{self.family} {self.table} {self.chain}"

    def to_json(self) -> dict[str, Any]:
        keys = ("tool", "family", "table", "chain", "rule", "certain")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class _End:
    """The end of a walk through a chain. Without a verdict the packet returned to the calling chain."""

    verdict: str | None
    text: str = ""
    certain: bool = True
    path: tuple[str, ...] = ()


def walk(chain: Chain, packet: Packet, hook: str, interface: str | None) -> Blocked | None:
    """Return the rule of this chain that stops the packet, if a rule does.

    A drop is uncertain after a rule that may have let the packet through. A drop that may or may not apply is uncertain
    too, and counts only if no certain drop follows.
    """
    interfaces = {"iif": interface, "oif": None} if hook == "input" else {"iif": None, "oif": interface}
    doubts: list[_End] = []
    visited: list[str] = []
    end = _run(chain.rules, (chain.name,), chain, packet, interfaces, doubts, visited)
    if end.verdict is None or end.verdict == RETURN:
        end = _End(DROP, POLICY, True, (chain.name,)) if chain.policy == DROP else _End(ACCEPT)
    if end.verdict in STOPS:
        certain = all(doubt.verdict in STOPS for doubt in doubts)
        return Blocked(end.text, certain, end.path, tuple(visited))
    maybe = next((doubt for doubt in doubts if doubt.verdict in STOPS), None)
    return Blocked(maybe.text, False, maybe.path, tuple(visited)) if maybe else None


def _run(
    rules: tuple[Rule, ...],
    path: tuple[str, ...],
    chain: Chain,
    packet: Packet,
    interfaces: Mapping[str, str | None],
    doubts: list[_End],
    visited: list[str],
) -> _End:
    for rule in rules:
        tests = [condition.test(packet, interfaces) for condition in rule.conditions]
        if False in tests:
            continue
        certain = None not in tests
        verdict, target = _decide(rule, packet, interfaces)
        if verdict in STOPS:
            end = _End(verdict, rule.text, certain, path)
            if certain:
                return end
            doubts.append(end)
        elif verdict in (JUMP, GOTO) and target is not None and target in chain.others:
            if len(path) >= CHAIN_DEPTH or len(visited) >= CHAIN_JUMPS:
                continue
            inner: list[_End] = []
            visited.append(target)
            end = _run(chain.others[target], (*path, target), chain, packet, interfaces, inner, visited)
            doubts += inner
            if end.verdict in (*STOPS, ACCEPT) and not certain:
                doubts.append(_End(end.verdict, end.text, False, end.path))
            elif certain and end.verdict not in (None, RETURN):
                return end
            elif certain and verdict == GOTO:
                return _End(None, path=path)
        elif verdict in (ACCEPT, RETURN):
            if certain:
                return _End(verdict, path=path)
            if verdict == ACCEPT:
                doubts.append(_End(verdict, rule.text, False, path))
    return _End(None, path=path)


def _decide(rule: Rule, packet: Packet, interfaces: Mapping[str, str | None]) -> tuple[str | None, str | None]:
    for condition, verdict, target in rule.branches:
        if condition.test(packet, interfaces):
            return verdict, target
    return rule.verdict, rule.target


def networks(texts: tuple[str, ...] | list[str]) -> tuple[Network, ...]:
    """Return addresses, prefixes and ``a-b`` ranges as networks."""
    found: list[Network] = []
    for text in texts:
        low, dash, high = text.partition("-")
        if dash:
            ends = ipaddress.ip_address(low), ipaddress.ip_address(high)
            found += ipaddress.summarize_address_range(*ends)
        else:
            found.append(ipaddress.ip_network(text, strict=False))
    return tuple(found)
