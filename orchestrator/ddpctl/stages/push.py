"""Environment and code onto every node, nothing started."""

from __future__ import annotations

from collections.abc import Sequence

from ddpctl.environment.blobs import Source
from ddpctl.environment.direct import deliver
from ddpctl.spec.event import StageEnded, StageStarted, Tell
from ddpctl.spec.push import Delivery
from ddpctl.transport.base import Fleet


def push_code(archive: Source, fleet: Fleet, tell: Tell, hosts: Sequence[str]) -> Delivery:
    """The job's code into the store of every host; hosts that have this very archive get nothing.

    The Delivery holds an error for each host that it did not reach; every other host is complete and verified.
    """
    tell(StageStarted("code", archive.size, "bytes"))
    delivery = deliver("code", [archive], fleet, tell, hosts)
    tell(StageEnded("code", delivery.ok, f"{delivery.traffic.sent_by_controller} bytes sent"))
    return delivery
