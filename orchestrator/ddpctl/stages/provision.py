"""The environment of a job on every node: what lies there already (existing), or one that ddpctl builds (managed)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpctl.spec.event import Tell
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.plan import Facts
from ddpctl.spec.push import EnvironmentOutcome, NodeEnvironment
from ddpctl.transport.base import Fleet


def provision(
    inventory: Inventory,
    hosts: Sequence[Host],
    facts: Facts,
    fleet: Fleet,
    tell: Tell,
    *,
    locked: bool = False,
    open_ports: Mapping[str, Sequence[int]] | None = None,
) -> EnvironmentOutcome:
    """Put the inventory's environment on ``hosts``; in existing mode nothing is touched and nobody is asked.

    ``facts`` gives the addresses that the nodes use among themselves, ``open_ports`` the ports that preflight proved
    open on each. With ``locked`` the lock of the last push is used as it is.

    Raises:
        ProvisionError: nothing that can be installed on these nodes was found (uv's explanation is in it). What goes
        wrong on single hosts is in the outcome's ``errors`` instead.
    """
    if inventory.environment.mode == "existing":
        nodes = {host.name: NodeEnvironment(host.name, host.python) for host in hosts}
        return EnvironmentOutcome("existing", nodes)
    # Only a managed environment pays for the resolver's and the downloader's libraries.
    from ddpctl.environment.managed import build

    begun = time.monotonic()
    outcome = build(inventory, hosts, facts, fleet, tell, locked=locked, open_ports=open_ports or {})
    return replace(outcome, duration_s=time.monotonic() - begun)
