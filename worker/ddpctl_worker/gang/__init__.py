"""The gang: the nodes of an attempt watch each other and agree on the cause of a failure, without the controller.

It is a star. The supervisor of node rank 0 is the hub; every other supervisor is a member, and keeps a connection to
the hub with a heartbeat every second. A node that fails reports to the hub. The hub decides on a single cause and sends
this verdict to all members. A member without a message from the hub ends its part by itself, so both sides of a cut
network stop.

- base.py: the class Gang that the supervisor uses, and its thread ("gang"). hub.py, member.py: the two kinds.
- wire.py: handshake and messages, proved with the run's key.
- failures.py: the failure detector and the choice of the cause. Pure.
- cuts.py: links that are cut between two members. Pure. cutwatch.py: the thread "cuts" that looks for such links.
- limits.py: every deadline, period and size.

The package owns no file.
"""

from __future__ import annotations

from typing import Optional

from ddpctl_worker.gang.base import Gang, Wake
from ddpctl_worker.record.runrecord import RunRecord


def join(run: RunRecord, key: Optional[str], wake: Wake) -> Optional[Gang]:
    """Return the gang of ``run``, not started yet; ``None`` for a single node or an elastic run."""
    place = run.get("gang")
    if not place or not key:
        return None
    from ddpctl_worker.gang.hub import HubGang  # here, so that only a run with a gang imports it
    from ddpctl_worker.gang.member import MemberGang

    kind = HubGang if place["hub_host"] == run["host"] else MemberGang
    gang: Gang = kind(run, bytes.fromhex(key), wake)
    return gang
