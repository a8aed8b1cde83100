"""Every check, in the order in which they are listed."""

from __future__ import annotations

from ddpctl.checks import (
    deep,
    env,
    fabric,
    fabric_speed,
    host,
    host_disk,
    host_limits,
    host_slots,
    ib,
    ib_use,
    job,
    job_imports,
    login,
    port,
    python,
    ssh,
    torch,
)
from ddpctl.checks.base import Check
from ddpctl.checks.gpu import cuda, driver, free, health, xid
from ddpctl.checks.gpu import links as gpu_links
from ddpctl.checks.mesh import links, ports, route

MESH = (*fabric.CHECKS, *fabric_speed.CHECKS, *route.CHECKS, *ports.CHECKS, *links.CHECKS)
MESH_IDS = frozenset(check.id for check in MESH)

CATALOGUE: tuple[Check, ...] = (
    *ssh.CHECKS,
    *host.CHECKS,
    *login.CHECKS,
    *env.CHECKS,
    *python.CHECKS,
    *torch.CHECKS,
    *host_disk.CHECKS,
    *host_limits.CHECKS,
    *host_slots.CHECKS,
    *driver.CHECKS,
    *cuda.CHECKS,
    *health.CHECKS,
    *free.CHECKS,
    *xid.CHECKS,
    *gpu_links.CHECKS,
    *ib.CHECKS,
    *ib_use.CHECKS,
    *job.CHECKS,
    *job_imports.CHECKS,
    *port.CHECKS,
    *MESH,
    *deep.CHECKS,
)
