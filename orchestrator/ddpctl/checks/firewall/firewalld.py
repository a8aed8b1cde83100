"""firewalld: a table of nftables, or chains of iptables where it is old, by zones."""

from __future__ import annotations

import re

from ddpctl.checks.firewall.rules import Blocked, BlockingRule, Chain
from ddpctl.checks.firewall.tool import Dump, FirewallTool, Opening, joined


def zone(verdict: Blocked) -> str | None:
    """The zone whose chain the packet went through (``filter_IN_public``, older: ``IN_public``)."""
    found = (re.fullmatch(r"(?:filter_)?IN_(?!policy_)(.+)", name) for name in verdict.visited)
    return next((match.group(1) for match in found if match), None)


def _owns(dump: Dump, chain: Chain, verdict: Blocked) -> bool:
    return chain.table == "firewalld" or bool(dump.get("firewalld") and chain.iptables)


def _lines(block: BlockingRule, opening: Opening) -> list[str]:
    """Rich rules of a zone are for what comes in; without ``--zone`` they would go into the default zone."""
    if opening.hook != "input":
        return []
    own = f" --zone={block.zone}" if block.zone else ""
    return [
        f'firewall-cmd --permanent{own} --add-rich-rule=\'rule family="ipv{opening.family}" source '
        f'address="{source}" port port="{joined(span)}" protocol="tcp" accept\''
        for source in opening.sources
        for span in opening.spans
    ]


def _note(block: BlockingRule, hook: str) -> str:
    if hook == "output":
        return f"{block.chain} of firewalld blocks outgoing traffic: change that policy or direct rule by hand"
    return "the reload drops firewall settings that are not permanent"


FIREWALLD = FirewallTool("firewalld", _owns, _lines, _note, last="firewall-cmd --reload", manages=True)
