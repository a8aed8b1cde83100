"""nftables: its rules, as ``nft -j list ruleset`` prints them, in the common form; and the command that opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpctl.checks.firewall.rules import ACCEPT, GOTO, JUMP, VERDICTS, BlockingRule, Chain, Condition, Rule, networks
from ddpctl.checks.firewall.tool import FirewallTool, Opening, join_spans

_IGNORED = frozenset({"counter", "log", "comment", "mangle", "notrack", "ct helper", "meta"})
_META = {"iifname": "iif", "iif": "iif", "oifname": "oif", "oif": "oif", "l4proto": "proto", "nfproto": "family"}
_NOT_TCP = ("udp", "icmp", "icmpv6", "sctp", "udplite", "dccp")
_SERVICES = {"ssh": 22, "domain": 53, "http": 80, "https": 443}


def base_chains(document: Mapping[str, Any]) -> tuple[Chain, ...]:
    """Return every base chain that filters, with the other chains of its table as jump targets."""
    items = document.get("nftables", [])
    sets = {_name(body): body for item in items for kind, body in item.items() if kind in ("set", "map")}
    tables: dict[tuple[str, str], dict[str, list[Rule]]] = {}
    for item in items:
        if "rule" in item:
            body = item["rule"]
            chains = tables.setdefault((body["family"], body["table"]), {})
            chains.setdefault(body["chain"], []).append(_rule(body, sets))
    bases = [item["chain"] for item in items if "chain" in item and "hook" in item["chain"]]
    found = []
    for body in sorted(bases, key=lambda body: body.get("prio", 0)):
        if body.get("type") != "nat":
            family, table, name = _name(body)
            others = {chain: tuple(rules) for chain, rules in tables.get((family, table), {}).items()}
            policy = body.get("policy", ACCEPT)
            found.append(Chain(family, table, name, body["hook"], policy, others.get(name, ()), others))
    return tuple(found)


def _name(body: Mapping[str, Any]) -> tuple[str, str, str]:
    return body["family"], body["table"], body["name"]


Sets = Mapping[tuple[str, str, str], Mapping[str, Any]]


def _rule(body: Mapping[str, Any], sets: Sets) -> Rule:
    conditions: list[Condition] = []
    verdict = target = None
    branches: tuple[tuple[Condition, str, str | None], ...] = ()
    words: list[str] = []
    for expression in body.get("expr", []):
        kind, value = next(iter(expression.items()))
        if kind == "match":
            conditions.append(_condition(value["left"], value["op"], value["right"], body, sets))
            words.append(_words(value))
        elif kind in VERDICTS:
            verdict, target = kind, (value or {}).get("target") if kind in (JUMP, GOTO) else None
            words.append(f"{kind} {target}" if target else kind)
        elif kind == "vmap":
            branches = _branches(value, body, sets)
            words.append("vmap")
        elif kind not in _IGNORED:
            conditions.append(Condition(kind))
            words.append(kind)
    return Rule(tuple(conditions), verdict, " ".join(words), target, branches)


def _branches(
    value: Mapping[str, Any], body: Mapping[str, Any], sets: Sets
) -> tuple[tuple[Condition, str, str | None], ...]:
    data = value["data"]
    if isinstance(data, str):
        elements = sets.get((body["family"], body["table"], data.lstrip("@")), {}).get("elem", [])
    else:
        elements = data.get("set", [])
    found = []
    for key, verdict in elements:
        kind, extra = next(iter(verdict.items())) if isinstance(verdict, dict) else (verdict, None)
        condition = _condition(value["key"], "==", key, body, sets)
        found.append((condition, kind, (extra or {}).get("target") if kind in (JUMP, GOTO) else None))
    return tuple(found)


def _condition(left: Any, op: str, right: Any, body: Mapping[str, Any], sets: Sets) -> Condition:
    """Return the condition of a match; a condition of unknown kind keeps its name and cannot be decided."""
    if _is_reverse_path(left):
        return Condition("reply_route", negate=(right is False) == (op == "=="))
    protocol = left.get("payload", {}).get("protocol") if isinstance(left, dict) else None
    if protocol in _NOT_TCP:  # the protocol decides alone: nft prints no `meta l4proto` beside it
        return Condition("proto", (protocol,))
    key = _key(left)
    values = _values(right, body, sets)
    if values is None or op in ("<", ">", "<=", ">="):
        return _bounded(key, op, right)
    negate = op == "!="
    try:
        if key in ("saddr", "daddr"):
            return Condition(key, networks([str(value) for value in values]), negate)
        if key in ("sport", "dport"):
            return Condition(key, tuple(_span(value) for value in values), negate)
    except ValueError:
        return Condition("unknown")
    return Condition(key, tuple(str(value) for value in values), negate)


def _is_reverse_path(left: Any) -> bool:
    """Return whether the match is ``fib saddr . iif oif missing``: does a reply leave by the packet's interface?"""
    fib = left.get("fib", {}) if isinstance(left, dict) else {}
    return fib.get("result") in ("oif", "oifname", "check") and "saddr" in fib.get("flags", ())


def _bounded(key: str, op: str, right: Any) -> Condition:
    """Return the condition of a comparison such as ``tcp dport > 1023``."""
    if key in ("sport", "dport") and isinstance(right, int):
        spans = {"<": (0, right - 1), "<=": (0, right), ">": (right + 1, 65535), ">=": (right, 65535)}
        if op in spans:
            return Condition(key, (spans[op],))
    return Condition("unknown")


def _key(left: Any) -> str:
    if not isinstance(left, dict):
        return "unknown"
    if "payload" in left:
        payload = left["payload"]
        protocol, field = payload.get("protocol"), payload.get("field")
        if protocol in ("ip", "ip6") and field in ("saddr", "daddr"):
            return str(field)
        if protocol in ("tcp", "th") and field in ("sport", "dport"):
            return str(field)
        return "proto" if (protocol, field) in (("ip", "protocol"), ("ip6", "nexthdr")) else "unknown"
    if "meta" in left:
        return _META.get(left["meta"].get("key"), "unknown")
    if "ct" in left and left["ct"].get("key") == "state":
        return "state"
    return "unknown"


def _values(right: Any, body: Mapping[str, Any], sets: Sets) -> list[Any] | None:
    """Return the right side as a flat list (numbers, words, ``a-b`` ranges, prefixes), if it is readable."""
    if isinstance(right, str) and right.startswith("@"):
        named = sets.get((body["family"], body["table"], right[1:]))
        return None if named is None else _values(named.get("elem", []), body, sets)
    if isinstance(right, list):
        flat: list[Any] = []
        for item in right:
            inner = _values(item, body, sets)
            if inner is None:
                return None
            flat += inner
        return flat
    if not isinstance(right, dict):
        return [right]
    if "set" in right:
        inner = right["set"]
        return _values(inner if isinstance(inner, list) else [inner], body, sets)
    if "range" in right:
        low, high = right["range"]
        return [f"{low}-{high}"]
    if "prefix" in right:
        return [f"{right['prefix']['addr']}/{right['prefix']['len']}"]
    if "elem" in right:
        return _values(right["elem"].get("val"), body, sets)
    return None


def _span(value: Any) -> tuple[int, int]:
    low, dash, high = str(value).partition("-")
    first = _SERVICES[low] if low in _SERVICES else int(low)
    return first, int(high) if dash else first


def _words(match: Mapping[str, Any]) -> str:
    """Return a match as nft would print it, close enough to find it in the ruleset."""
    left, right = match["left"], match["right"]
    name = "match"
    if isinstance(left, dict):
        kind, value = next(iter(left.items()))
        if kind == "payload":
            name = f"{value.get('protocol', '')} {value.get('field', '')}".strip()
        elif kind in ("meta", "ct"):
            key = value.get("key")
            name = f"{kind} {key}" if kind == "ct" or key == "length" else str(key)
    sign = "" if match["op"] in ("==", "in") else f"{match['op']} "
    return f"{name} {sign}{_right(right)}"


def _right(right: Any) -> str:
    if isinstance(right, dict):
        if "set" in right:
            inner = right["set"] if isinstance(right["set"], list) else [right["set"]]
            return "{ " + ", ".join(_right(item) for item in inner) + " }"
        if "range" in right:
            return "-".join(str(end) for end in right["range"])
        if "prefix" in right:
            return f"{right['prefix']['addr']}/{right['prefix']['len']}"
        return "..."
    if isinstance(right, list):
        return ",".join(_right(item) for item in right)
    return str(right)


# --- opening ---------------------------------------------------------------------------------------------------------


def _lines(block: BlockingRule, opening: Opening) -> list[str]:
    """Insert at the head of the base chain: an accept there ends that chain, before any rule that drops."""
    side = "saddr" if opening.hook == "input" else "daddr"
    protocol = "ip" if opening.family == 4 else "ip6"
    ports = _braces([join_spans(span) for span in opening.spans])
    rule = f"{protocol} {side} {_braces(opening.sources)} tcp dport {ports} accept"
    return [f"nft 'insert rule {block.family} {block.table} {block.chain} {rule}'"]


def _braces(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else "{ " + ", ".join(words) + " }"


_NOTE = "it is lost at a reboot: add it to /etc/nftables.conf too"
NFT = FirewallTool("nft", lambda dump, chain, verdict: not chain.iptables, _lines, lambda block, hook: _NOTE)
