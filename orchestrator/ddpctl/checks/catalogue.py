"""Every check there is, in the order in which they are told."""

from __future__ import annotations

from ddpctl.checks import (
    acs,
    cgroup,
    connection,
    disk,
    env,
    gpu,
    gpu_health,
    host,
    identity,
    infiniband,
    job,
    kernel_log,
    limits,
    login,
    network,
    port,
    python,
    rdma,
    rehearsal,
    tables,
    torch,
)
from ddpctl.checks.base import Check

CATALOGUE: tuple[Check, ...] = (
    *connection.CHECKS,
    *identity.CHECKS,
    *host.CHECKS,
    *login.CHECKS,
    *env.CHECKS,
    *python.CHECKS,
    *torch.CHECKS,
    *disk.CHECKS,
    *limits.CHECKS,
    *cgroup.CHECKS,
    *tables.CHECKS,
    *gpu.CHECKS,
    *gpu_health.CHECKS,
    *kernel_log.CHECKS,
    *acs.CHECKS,
    *infiniband.CHECKS,
    *rdma.CHECKS,
    *job.CHECKS,
    *port.CHECKS,
    *network.CHECKS,
    *rehearsal.CHECKS,
)
