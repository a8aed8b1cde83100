"""iptables: its rules, as ``iptables-save`` prints them, in the common form; and the command that opens them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpctl.checks.firewall.rules import GOTO, JUMP, BlockingRule, Chain, Condition, Rule, networks
from ddpctl.checks.firewall.tool import FirewallTool, Opening, portions

_VERDICTS = frozenset({"ACCEPT", "DROP", "REJECT", "RETURN"})  # the verdicts of rules.py, in capitals
# Targets after which a filtered packet continues.
_LOGS = ("LOG", "NFLOG", "ULOG", "TRACE")
_MARKS = ("MARK", "CONNMARK", "TCPMSS", "CT", "NOTRACK", "CLASSIFY", "TOS", "DSCP", "CHECKSUM")
_PASSING = frozenset((*_LOGS, *_MARKS))
_HOOKS = {"PREROUTING": "prerouting", "INPUT": "input", "OUTPUT": "output", "POSTROUTING": "postrouting"}
_TABLES = ("raw", "mangle", "filter", "security")
_NO_ARGUMENT = frozenset({"--syn", "--fragment", "-f", "--ashort", "--log-tcp-options", "--log-ip-options", "--random"})


def base_chains(text: str, family: str) -> tuple[Chain, ...]:
    """Return the built-in chains of every table that filters, in the kernel's order of tables."""
    policies: dict[tuple[str, str], str] = {}
    rules: dict[str, dict[str, list[Rule]]] = {}
    table = "filter"
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            policies[(table, name)] = policy
            rules.setdefault(table, {}).setdefault(name, [])
        elif line.startswith("-A "):
            name, rule = _rule(line)
            rules.setdefault(table, {}).setdefault(name, []).append(rule)
    found = []
    for table in _TABLES:
        others = {name: tuple(members) for name, members in rules.get(table, {}).items()}
        for name, hook in _HOOKS.items():
            builtin = policies.get((table, name))
            if builtin in ("ACCEPT", "DROP"):
                found.append(
                    Chain(family, table, name, hook, builtin.lower(), others.get(name, ()), others, iptables=True)
                )
    return tuple(found)


def _rule(line: str) -> tuple[str, Rule]:
    """Parse an ``-A CHAIN ...`` line; return the chain's name and the rule."""
    words = shlex.split(line)
    conditions: list[Condition] = []
    if "rpfilter" in words:
        conditions.append(Condition("reply_route", negate="--invert" in words))
    verdict: str | None = None
    target: str | None = None
    for negate, option, arguments in _options(words[2:]):
        if option in ("-j", "--jump", "-g", "--goto"):
            goal = arguments[0]
            if goal in _VERDICTS:
                verdict = goal.lower()
            elif goal not in _PASSING:
                verdict, target = (GOTO if option in ("-g", "--goto") else JUMP), goal
        else:
            condition = _condition(option, arguments, negate)
            if condition is not None:
                conditions.append(condition)
    return words[1], Rule(tuple(conditions), verdict, line.strip(), target)


def _options(words: list[str]) -> Iterator[tuple[bool, str, list[str]]]:
    """Yield (negated, option, its arguments); ``!`` may stand before the option or its argument."""
    at = 0
    negate = False
    while at < len(words):
        word = words[at]
        at += 1
        if word == "!":
            negate = True
            continue
        arguments: list[str] = []
        while at < len(words) and not words[at].startswith("-") and word not in _NO_ARGUMENT:
            if words[at] == "!":
                if at + 1 < len(words) and words[at + 1].startswith("-"):
                    break
                negate = True
            else:
                arguments.append(words[at])
            at += 1
        yield negate, word, arguments
        negate = False


def _condition(option: str, arguments: list[str], negate: bool) -> Condition | None:
    """Return the condition of an option.

    None for an option without a condition; a nameless condition for an option that is not known here.
    """
    value = arguments[0] if arguments else ""
    try:
        if option in ("-s", "--source", "-d", "--destination", "--src-range", "--dst-range"):
            key = "saddr" if option in ("-s", "--source", "--src-range") else "daddr"
            return Condition(key, networks(value.split(",")), negate)
        if option in ("--dport", "--dports", "--destination-port", "--sport", "--sports", "--source-port"):
            key = "dport" if option.startswith("--d") else "sport"
            return Condition(key, tuple(_span(part) for part in value.split(",")), negate)
    except ValueError:
        return Condition("unknown")
    if option in ("-p", "--protocol"):
        return Condition("proto", (value,), negate)
    if option in ("-i", "--in-interface", "-o", "--out-interface"):
        return Condition("iif" if option in ("-i", "--in-interface") else "oif", (value,), negate)
    if option in ("--ctstate", "--state"):
        return Condition("state", tuple(value.lower().split(",")), negate)
    if option == "--syn":
        return Condition("syn", (), negate)
    if option == "-m":
        return Condition(value) if value in ("set", "limit", "hashlimit", "recent", "connlimit", "statistic") else None
    if option in ("--comment", "--reject-with", "--log-prefix", "--log-level", "--limit-burst", "--limit"):
        return None
    if option in ("--validmark", "--invert", "--loose", "--accept-local"):  # options of rpfilter
        return None
    return Condition("unknown")


def _span(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    first = int(low or 0)
    return first, (int(high or 65535) if colon else first)


# --- opening ---------------------------------------------------------------------------------------------------------


def _lines(block: BlockingRule, opening: Opening) -> list[str]:
    program = "iptables" if opening.family == 4 else "ip6tables"
    side = "-s" if opening.hook == "input" else "-d"
    table = "" if block.table == "filter" else f"-t {block.table} "
    return [
        f"{program} -w 5 {table}-I {block.chain} 1 -p tcp {side} {','.join(opening.sources)} "
        f"-m multiport --dports {ports} -j ACCEPT"
        for ports in portions(opening.spans)
    ]


_NOTE = "it is lost at a reboot: add it to the rules that this machine loads (iptables-save) too"
IPTABLES = FirewallTool("iptables", lambda dump, chain, verdict: chain.iptables, _lines, lambda block, hook: _NOTE)
