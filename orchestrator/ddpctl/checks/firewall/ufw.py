"""ufw: rules of iptables in chains of its own."""

from __future__ import annotations

from ddpctl.checks.firewall.rules import POLICY, Blocked, BlockingRule, Chain
from ddpctl.checks.firewall.tool import Dump, FirewallTool, Opening, portions


def _owns(dump: Dump, chain: Chain, verdict: Blocked) -> bool:
    """A rule put before ufw's own chains is none of ufw's, and it cannot undo it."""
    own = any(name.startswith(("ufw-", "ufw6-")) for name in verdict.path) or verdict.text == POLICY
    return bool(dump.get("ufw")) and chain.iptables and own


def _lines(block: BlockingRule, opening: Opening) -> list[str]:
    """``prepend`` and not ``insert 1``: ufw numbers IPv6 rules after all IPv4 ones."""
    form = "from {} to any port" if opening.hook == "input" else "to {} port"
    direction = "" if opening.hook == "input" else "out "
    return [
        f"ufw prepend allow {direction}proto tcp {form.format(source)} {ports}"
        for source in opening.sources
        for ports in portions(opening.spans)
    ]


UFW = FirewallTool("ufw", _owns, _lines, lambda block, hook: "ufw keeps it across reboots", manages=True)
