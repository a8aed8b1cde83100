"""Firewall rules in one form, and a packet's walk through them."""

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
    """A TCP packet: the first of a connection (``state`` "new") or an answer ("established")."""

    src: str
    dst: str
    sport: int
    dport: int
    state: str = "new"


@dataclass(frozen=True)
class Condition:
    """One match of a rule. ``key`` is saddr, daddr (values: networks), sport, dport (values: port spans), proto, iif,
    oif, state, family (values: words), syn, reply_route, or anything else, which cannot be judged."""

    key: str
    values: tuple[Any, ...] = ()
    negate: bool = False

    def test(self, packet: Packet, interfaces: Mapping[str, str | None]) -> bool | None:
        """Whether the packet matches; None when that cannot be told."""
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
        if self.key == "reply_route":  # rpfilter: the peer's answers have a route, or mesh.route would have found it
            return True
        return None


def _interface_matches(name: str | None, patterns: tuple[str, ...]) -> bool | None:
    """``eth*`` (nft) and ``eth+`` (iptables) match by their beginning; None when our interface is not known."""
    if name is None:
        return False if patterns == ("lo",) else None
    return any(name == p or (p[-1:] in "*+" and name.startswith(p[:-1])) for p in patterns if p)


@dataclass(frozen=True)
class Rule:
    """All conditions must hold; then ``verdict`` (None: only counts, logs or marks). ``target``: of a jump.

    ``branches`` is a verdict map: the first entry whose condition holds decides.
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
    """How a walk ended: the deciding rule's words, the chains on the way to it, whether it is certain, and every chain
    that the packet saw."""

    text: str
    certain: bool
    path: tuple[str, ...]
    visited: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockingRule:
    """A base chain that stops the packet, and the rule that does it; ``zone``: of firewalld, that the packet was in."""

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
    """The end of a walk through one chain; ``verdict`` None: fell through to the caller."""

    verdict: str | None
    text: str = ""
    certain: bool = True
    path: tuple[str, ...] = ()


def walk(chain: Chain, packet: Packet, hook: str, interface: str | None) -> Blocked | None:
    """What stops the packet in this chain; None when it passes.

    A drop after a rule that may have let the packet through is uncertain, and so is a drop that may or may not apply
    unless a certain one comes up.
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
    """Addresses, prefixes and ``a-b`` ranges as networks."""
    found: list[Network] = []
    for text in texts:
        low, dash, high = text.partition("-")
        if dash:
            ends = ipaddress.ip_address(low), ipaddress.ip_address(high)
            found += ipaddress.summarize_address_range(*ends)
        else:
            found.append(ipaddress.ip_network(text, strict=False))
    return tuple(found)
