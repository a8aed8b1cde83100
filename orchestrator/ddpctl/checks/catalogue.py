"""Every check there is, in the order in which they are told."""

from __future__ import annotations

from ddpctl.checks import (
    connection,
    disk,
    gpu,
    gpu_health,
    host,
    imports,
    infiniband,
    job,
    kernel_log,
    leftovers,
    limits,
    login,
    network,
    port,
    python,
    rehearsal,
    torch,
    vision,
)
from ddpctl.checks.base import Check

CATALOGUE: tuple[Check, ...] = (
    *connection.CHECKS,
    *host.CHECKS,
    *login.CHECKS,
    *python.CHECKS,
    *torch.CHECKS,
    *vision.CHECKS,
    *disk.CHECKS,
    *limits.CHECKS,
    *gpu.CHECKS,
    *gpu_health.CHECKS,
    *kernel_log.CHECKS,
    *infiniband.CHECKS,
    *job.CHECKS,
    *imports.CHECKS,
    *leftovers.CHECKS,
    *port.CHECKS,
    *network.CHECKS,
    *rehearsal.CHECKS,
)
