"""The nodes of a run watch each other, without the controller.

A star: the supervisor of node rank 0 is the hub, every other one connects to it (wire.py) and says once a second that
it lives. A node that fails tells the hub; the hub decides on one cause (council.py) and tells all. A member that hears
nothing of the hub ends its run by itself: each side of a cut network stops.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from ddpctl_worker.gang.base import Gang, Wake


def join(run: Dict[str, Any], key: Optional[str], wake: Wake) -> Optional[Gang]:
    """The gang of ``run``, to be started; None for a run that has none (one node, or an elastic one)."""
    if not run.get("gang") or not key:
        return None
    from ddpctl_worker.gang.hub import HubGang  # one of them is enough
    from ddpctl_worker.gang.member import MemberGang

    kind = HubGang if run["gang"]["hub_host"] == run["host"] else MemberGang
    gang: Gang = kind(run, bytes.fromhex(key), wake)
    return gang
