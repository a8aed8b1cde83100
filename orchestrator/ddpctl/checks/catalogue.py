"""Every check there is, in the order in which they are told."""

from __future__ import annotations

from ddpctl.checks import connection, disk, network, port, python, torch
from ddpctl.checks.base import Check

CATALOGUE: tuple[Check, ...] = (
    *connection.CHECKS,
    *python.CHECKS,
    *torch.CHECKS,
    *disk.CHECKS,
    *port.CHECKS,
    *network.CHECKS,
)
