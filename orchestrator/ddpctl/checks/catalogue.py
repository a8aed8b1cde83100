"""Every check there is, in the order in which they are told."""

from __future__ import annotations

from ddpctl.checks import (
    connection,
    disk,
    gpu,
    gpu_count,
    gpu_fabric,
    gpu_free,
    gpu_health,
    gpu_torch,
    host,
    infiniband,
    job,
    kernel_log,
    limits,
    login,
    network,
    port,
    python,
    rehearsal,
    torch,
)
from ddpctl.checks.base import Check

CATALOGUE: tuple[Check, ...] = (
    *connection.CHECKS,
    *host.CHECKS,
    *login.CHECKS,
    *python.CHECKS,
    *torch.CHECKS,
    *disk.CHECKS,
    *limits.CHECKS,
    *gpu.CHECKS,
    *gpu_count.CHECKS,
    *gpu_torch.CHECKS,
    *gpu_health.CHECKS,
    *gpu_free.CHECKS,
    *gpu_fabric.CHECKS,
    *kernel_log.CHECKS,
    *infiniband.CHECKS,
    *job.CHECKS,
    *port.CHECKS,
    *network.CHECKS,
    *rehearsal.CHECKS,
)
