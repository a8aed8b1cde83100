"""Inventories for the tests of the transport."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddpctl.spec.inventory import Host, Inventory
from ddpctl.transport.base import Frame
from tests.lab import Lab


def of_lab(lab: Lab, *hosts: Host, **keys: Any) -> Inventory:
    """An inventory of the lab's hosts, or of the given hosts."""
    all_hosts = hosts or tuple(Host(name=host.name, address=host.address) for host in lab.hosts)
    fields = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts), **keys}
    return Inventory(hosts=all_hosts, **fields)


def plain(folder: Path, *hosts: Host, config: str = "", known: str = "") -> Inventory:
    """An inventory with an ssh_config and a known_hosts of its own."""
    (folder / "ssh_config").write_text(config)
    (folder / "known_hosts").write_text(known)
    return Inventory(hosts=hosts, ssh_config=str(folder / "ssh_config"), known_hosts=str(folder / "known_hosts"))


class OnFifth:
    """Does something to a host when a stream's fifth frame has come: whatever comes first, the stream runs by then."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.done = False

    def __call__(self, frame: Frame) -> None:
        if frame.data["n"] == 4:
            self._action()
            self.done = True
