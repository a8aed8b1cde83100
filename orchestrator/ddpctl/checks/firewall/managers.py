"""ufw and firewalld, which manage rules of iptables or nftables, each in chains of its own."""

from __future__ import annotations

import re

from ddpctl.checks.firewall.rules import POLICY, Blocked, BlockingRule, Chain
from ddpctl.checks.firewall.tool import Dump, FirewallTool, Opening, join_spans, portions

# --- ufw: chains of iptables -----------------------------------------------------------------------------------------


def _ufw_owns(dump: Dump, chain: Chain, verdict: Blocked) -> bool:
    """Return whether ufw made the rule. A rule before ufw's own chains is not ufw's, and ufw cannot undo it."""
    own = any(name.startswith(("ufw-", "ufw6-")) for name in verdict.path) or verdict.text == POLICY
    return bool(dump.get("ufw")) and chain.iptables and own


def _ufw_lines(block: BlockingRule, opening: Opening) -> list[str]:
    """Return the commands: ``prepend``, not ``insert 1``, because ufw numbers IPv6 rules after all IPv4 rules."""
    form = "from {} to any port" if opening.hook == "input" else "to {} port"
    direction = "" if opening.hook == "input" else "out "
    return [
        f"ufw prepend allow {direction}proto tcp {form.format(source)} {ports}"
        for source in opening.sources
        for ports in portions(opening.spans)
    ]


UFW = FirewallTool("ufw", _ufw_owns, _ufw_lines, lambda block, hook: "ufw keeps it across reboots", manages=True)


# --- firewalld: a table of nftables, or chains of iptables where it is old, by zones ---------------------------------


def zone(verdict: Blocked) -> str | None:
    """Return firewalld's zone with the chain that the packet passed (``filter_IN_public``, older: ``IN_public``)."""
    found = (re.fullmatch(r"(?:filter_)?IN_(?!policy_)(.+)", name) for name in verdict.visited)
    return next((match.group(1) for match in found if match), None)


def _firewalld_owns(dump: Dump, chain: Chain, verdict: Blocked) -> bool:
    return chain.table == "firewalld" or bool(dump.get("firewalld") and chain.iptables)


def _firewalld_lines(block: BlockingRule, opening: Opening) -> list[str]:
    """Rich rules of a zone apply to incoming packets; without ``--zone`` they go into the default zone."""
    if opening.hook != "input":
        return []
    own = f" --zone={block.zone}" if block.zone else ""
    return [
        f'firewall-cmd --permanent{own} --add-rich-rule=\'rule family="ipv{opening.family}" source '
        f'address="{source}" port port="{join_spans(span)}" protocol="tcp" accept\''
        for source in opening.sources
        for span in opening.spans
    ]


def _firewalld_note(block: BlockingRule, hook: str) -> str:
    if hook == "output":
        return f"{block.chain} of firewalld blocks outgoing traffic: change that policy or direct rule by hand"
    return "the reload drops firewall settings that are not permanent"


FIREWALLD = FirewallTool(
    "firewalld", _firewalld_owns, _firewalld_lines, _firewalld_note, last="firewall-cmd --reload", manages=True
)
