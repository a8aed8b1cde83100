"""A host that is back takes part in a live run again.

Nothing starts ddpctl there at boot, and the secrets of a run are on no disk. So a command that is connected to the
nodes does it: it asks an agent of the run for them, on a host where one lives, and starts the agent on the other one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ddpctl.errors import ConnectError, DdpctlError, RemoteError
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages.status import ask_runs, merged
from ddpctl.transport.base import Fleet
from ddpctl_worker import contract

ADMIT_TIMEOUT_S = 20.0
REJOIN_TIMEOUT_S = 120.0  # what is left of the last attempt ends when its lease does, within 40 s
_AT_WORK = frozenset({contract.PENDING, contract.STARTING, contract.RUNNING, contract.STOPPING, contract.SUCCEEDED})
_log = logging.getLogger(__name__)


def rejoin(fleet: Fleet, run: RunStatus, host: str) -> bool:
    """Have ``host``, whose agent is gone, take part in ``run`` again. False: the run is over. Safe to repeat.

    Raises:
        ConnectError: the host is out of reach again, or no agent of the run answers now. RemoteError: it cannot take
            part, and why.
    """
    admitted = _admitted(fleet, run, host)
    if admitted is None:
        return False
    answer = fleet.transport(host).call("rejoin", {"run": run.run, **admitted}, timeout=REJOIN_TIMEOUT_S)
    return answer["status"]["state"] not in contract.TERMINAL


def rejoin_all(fleet: Fleet, run: RunStatus, tell: Tell) -> list[str]:
    """The same for every host of a live run that answers and has lost its agent; those that take part again."""
    back = []
    for host in [node.host for node in run.nodes if node.state == contract.LOST and node.host in fleet.hosts]:
        try:
            if rejoin(fleet, run, host):
                back.append(host)
                tell(Note(TAKES_PART, host=host))
        except DdpctlError as error:
            tell(cannot(error, host))
    return back


TAKES_PART = "takes part in the run again; the next restart may use it"


def cannot(error: DdpctlError, host: str) -> Note:
    """What is said of a host that is back and stays out."""
    if isinstance(error, RemoteError) and error.kind == contract.NO_SUCH_RUN:
        what = "it is back without its record of the run, so it cannot take part again; the run continues without it"
        return Note(what, "warning", host)
    why = error.message if not error.hint else f"{error.message}; {error.hint}"
    return Note(f"it is back and cannot take part again: {why}", "warning", host)


def _admitted(fleet: Fleet, run: RunStatus, host: str) -> Mapping[str, Any] | None:
    """What a living agent of the run was given; None: the run is over. The one that knows the newest of it is asked
    first.

    Raises:
        ConnectError: none answers.
    """
    found = merged(ask_runs(fleet, run.run, hosts=[one for one in run.hosts if one in fleet.hosts]))
    if any(one.run == run.run and one.terminal for one in found):
        return None
    others = [node for one in found if one.run == run.run for node in one.nodes]
    others = [node for node in others if node.host != host]
    nodes = [node for node in others if node.agreed and node.state in _AT_WORK]
    for node in sorted(nodes, key=_newest, reverse=True):
        try:
            answer = fleet.transport(node.host).call("admit", {"run": run.run}, timeout=ADMIT_TIMEOUT_S)
        except DdpctlError as error:
            _log.debug("%s cannot be asked to admit %s: %s", node.host, host, error)
            continue
        return None if answer["over"] else {name: answer[name] for name in answer if name != "over"}
    asked = ", ".join(node.host for node in others) or "the other hosts"
    raise ConnectError(f"no agent of the run answers on {asked} to let it take part again", host=host)


def _newest(node: Any) -> tuple[int, int]:
    return node.agreed["term"], node.agreed["version"]
