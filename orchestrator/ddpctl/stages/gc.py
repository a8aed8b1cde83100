"""Lists or removes old runs, environments and wheels on the nodes."""

from __future__ import annotations

from collections.abc import Sequence

from ddpctl.errors import ProvisionError, RemoteError
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.push import Garbage, GcOutcome
from ddpctl.stages.limits import GC_KEEP_DAYS, GC_S
from ddpctl.transport.base import Fleet, Transport


def collect_garbage(
    inventory: Inventory,
    hosts: Sequence[Host],
    fleet: Fleet,
    tell: Tell,
    *,
    delete: bool,
    days: float = GC_KEEP_DAYS,
) -> GcOutcome:
    """List the files that no live run uses and that were last used ``days`` ago; with ``delete`` remove them.

    Files from the last hour always stay: a start may be about to use them.
    """
    tell(StageStarted("gc", len(hosts)))

    def work(transport: Transport) -> tuple[Garbage, ...]:
        try:
            found: tuple[Garbage, ...] = transport.call("gc", {"days": days, "delete": delete}, timeout=GC_S)["items"]
        except RemoteError as error:
            raise ProvisionError(error.message, hint=error.hint, host=transport.host) from error
        return found

    outcome = fleet.map(work, [host.name for host in hosts], on_done=counting("gc", len(hosts), tell))
    tell(StageEnded("gc", outcome.ok))
    return GcOutcome(inventory.cluster, not delete, dict(outcome.results), dict(outcome.errors))
