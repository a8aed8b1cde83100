"""Chooses py-spy for the nodes of a launch; `ddpctl doctor` reads the stacks of ranks with it."""

from __future__ import annotations

import logging

from ddpctl.environment.direct import FileSource
from ddpctl.environment.tools import MACHINES, PY_SPY, machine_type, own_program, runs_there
from ddpctl.errors import DdpctlError
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.fold import group_by
from ddpctl.spec.plan import Facts
from ddpctl.stages.launch import Launch

_log = logging.getLogger(__name__)


def py_spy_for(launch: Launch, facts: Facts, tell: Tell) -> dict[str, FileSource]:
    """Return the py-spy file for each host that gets a file; an empty dictionary where the job has no doctor.

    A host can start without py-spy: every failure is a warning.
    """
    if launch.job is None or launch.job.doctor is None:
        return {}
    found: dict[str, FileSource] = {}
    for machine, hosts in group_by(lambda host: facts.node(host).machine, launch.names).items():
        try:
            source = _file(launch, machine)
        except (DdpctlError, OSError) as error:
            tell(Note(f"no py-spy on {', '.join(hosts)}: {error}", "warning"))
            continue
        if source is None:
            _log.info("no py-spy on %s: this machine has no build for machine type %s", ", ".join(hosts), machine)
            continue
        found.update(dict.fromkeys(hosts, source))
    return found


def _file(launch: Launch, machine: str | None) -> FileSource | None:
    """Return py-spy for a machine type, ``None`` where there is no py-spy for it here.

    This machine's own py-spy is used where it runs on that type. Another build must be resolved and downloaded, which
    only a managed environment pays for.

    Raises:
        ProvisionError: the download failed.
    """
    if machine is None:
        return None
    if runs_there(machine):
        return own_program(PY_SPY)
    if not launch.managed or machine_type(machine) not in MACHINES:
        return None
    from ddpctl.environment.managed import fetch_tool

    return fetch_tool(PY_SPY, machine_type(machine), launch.inventory)
