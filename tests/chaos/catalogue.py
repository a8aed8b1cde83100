"""Every fault there is."""

from __future__ import annotations

from tests.chaos import commands, disks, hosts, processes
from tests.chaos.fault import Fault
from tests.chaos.plan import FINISH, Choice

FAULTS: dict[str, Fault] = {
    fault.name: fault for module in (processes, hosts, disks, commands) for fault in module.faults()
}


def choices(names: set[str] | None = None) -> dict[str, Choice]:
    """What a plan may choose from; all faults, or the named faults."""
    return {
        name: Choice(fault.moments, fault.thens or (FINISH,), fault.jobs)
        for name, fault in FAULTS.items()
        if not names or name in names
    }
