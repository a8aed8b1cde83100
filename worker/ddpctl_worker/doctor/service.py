"""The doctor verb.

The verb asks the run's supervisor for a close look: where Yama guards memory, only the supervisor of a rank can read
its stack. Without an answer the verb looks at the ranks directly. For a run that has ended, the verb returns the last
look, which the supervisor took before it stopped the processes.
"""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.doctor import dumps, look
from ddpctl_worker.doctor.limits import ANSWER_BYTES, READ_DUMPS_S, SENT_ENTRIES
from ddpctl_worker.doctor.look import Subject, Tools
from ddpctl_worker.doctor.watch import shorten_look
from ddpctl_worker.machine import fs, processes
from ddpctl_worker.machine.answer_socket import ask
from ddpctl_worker.record import ranks
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.record import named_by
from ddpctl_worker.record.runrecord import RunRecord, read_run
from ddpctl_worker.record.status import node_status
from ddpctl_worker.rules import flight
from ddpctl_worker.wire.channel import Channel
from ddpctl_worker.wire.contract import TERMINAL

SHORTENED = "the look at it is shortened: with all of it the node's answer is too long"


def doctor(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer with ``{"looks": [Look], "state", "ended", "slow": [...]}``.

    ``ended``: the looks were taken before the end of the run.
    """
    paths, run = named_by(request)
    paths = paths.newest()
    run = read_run(paths) or run
    status = node_status(paths)
    found: Dict[str, Any] = {"state": status["state"], "ended": status["state"] in TERMINAL, "looks": [], "slow": []}
    if found["ended"]:
        answer: Optional[Dict[str, Any]] = fs.read_optional(paths.last_look)
    else:
        answer = ask(paths.doctor_socket)
    found["looks"] = _list(answer.get("looks")) if answer is not None else shorten_looks(_by_itself(paths, run))
    found["slow"] = _list((answer or {}).get("slow"))
    if found["ended"]:
        _add_dumps(paths, found["looks"])
    for one in found["looks"]:
        one["host"] = str(run["host"])
    return found


def _add_dumps(paths: RunPaths, looks: List[Dict[str, Any]]) -> None:
    """Add torch's dumps to the looks without collectives.

    A healthy job is never asked for its NCCL collectives, so a dump may be the only source.
    """
    until = time.monotonic() + READ_DUMPS_S
    for one in looks:
        if one.get("groups"):
            continue
        try:
            found = dumps.read_dump(paths.dumps, int(one["rank"]), until)
        except (OSError, ValueError) as error:
            text = "torch's dump doctor/nccl/rank_%s: %s" % (one["rank"], getattr(error, "strerror", None) or error)
            one["missing"] = [*(one.get("missing") or ()), text]
            continue
        if found:
            one.update(groups=flight.to_json(found, SENT_ENTRIES), dumped=True)
            one["missing"] = [line for line in one.get("missing") or () if line != look.NO_RECORD]


def _list(value: Any) -> List[Dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def shorten_looks(looks: List[Dict[str, Any]], most: int = ANSWER_BYTES) -> List[Dict[str, Any]]:
    """Return the looks in at most ``most`` bytes: whole, shortened, or without stacks and collectives."""
    for less in (dict, shorten_look, _barely):
        made = [less(one) for one in looks]
        if less is not dict:
            made = [dict(one, missing=[*(one.get("missing") or ()), SHORTENED]) for one in made]
        if len(json.dumps(made)) <= most:
            break
    return made


def _barely(one: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in one.items() if not isinstance(value, (dict, list))}


def _by_itself(paths: RunPaths, run: RunRecord) -> List[Dict[str, Any]]:
    """Look at the ranks below the launcher, without the supervisor."""
    launcher = processes.identity_from_json(fs.read_optional(paths.state).get("launcher"))
    if launcher is None or not processes.is_alive(launcher):
        return []
    found = [Subject(one.rank, one.local_rank, one.pid) for one in ranks.find_ranks_of_run(run, launcher.pid, {})]
    why = "the run's supervisor did not answer" if run.get("doctor") else "the doctor is off for this job"
    return look.look(found, Tools(paths.doctor, None, asked=True, no_py_spy=why))
