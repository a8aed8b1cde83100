"""Validates what a worker sends: no other module turns frames into values.

A node may be broken or hostile. A validated answer has the fields, types and bounds that the stages rely on, and is
about the host and the run that the request named. Fields without a declared shape are dropped. An answer that does not
pass is an error of that host, of kind ``protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ddpctl.spec.bounds import Unicode
from ddpctl.transport.base import Frame
from ddpctl.transport.pipe import garbled
from ddpctl.transport.shapes import checkpoints, doctor, environment, history, preflight, runs, top
from ddpctl.transport.shapes.adapters import adapter, first_fault

RESULTS: Mapping[str, Any] = {
    "echo": dict[Unicode, Any],
    "ask_checkpoint": runs.AskedDict,
    "doctor": doctor.ConsultedDict,
    "probe": preflight.ProbedDict,
    "start": runs.StartedDict,
    "status": runs.RunsDict,
    "untracked": runs.UntrackedDict,
    "stop": runs.StoppedDict,
    "remove": runs.RemovedDict,
    "metrics": runs.MetricsDict,
    "history": history.HistoryDict,
    "tail": runs.TailedDict,
    "top": environment.NothingDict,
    "fetch": runs.FetchedDict,
    "fetch_checkpoint": environment.NothingDict,
    "checkpoints": checkpoints.HeldDict,
    "set_aside": checkpoints.AsideDict,
    "store_has": environment.HoldingsDict,
    "store_get": environment.NothingDict,
    "store_put": environment.NothingDict,
    "listen": environment.NothingDict,
    "dial": preflight.Dialled,
    "free_port": preflight.FreePortsDict,
    "firewall": preflight.FirewallDict,
    "rehearse": preflight.RehearsedDict,
    "begin": runs.StartedDict,
    "line_up": runs.StartedDict,
    "slots": runs.SlotsDict,
    "spread": environment.SpreadDict,
    "restore": checkpoints.RestoredDict,
    "install": environment.InstalledDict,
    "build": environment.BuiltDict,
    "gc": environment.CollectedDict,
}
# verb -> key that identifies a kind of frame -> shape of that frame
FRAMES: Mapping[str, Mapping[str, Any]] = {
    "echo": {"n": dict[Unicode, Any]},
    "tail": {
        "lines": runs.LinesDict,
        "state": runs.StandingDict,
        "stuck": runs.StuckDict,
        "lag": runs.FallingBehindDict,
    },
    "top": {"run": top.RunFrameDict, "pulse": top.PulseFrameDict},
    "stop": {"growing": runs.GrowingFrameDict},
    "fetch": {"file": runs.FileFrameDict, "chunk": runs.ChunkDict},
    "fetch_checkpoint": {"file": runs.FileFrameDict, "chunk": runs.ChunkDict},
    "store_get": {"chunk": runs.ChunkDict},
    "listen": {"listening": preflight.ListeningDict},
    "firewall": {"tool": preflight.RulesDict},
    "build": {"piece": environment.PieceDict},
    "spread": {
        "listening": environment.JoinedDict,
        "progress": environment.PassedDict,
        "want": environment.WantedDict,
        "left": environment.LeftDict,
        "complete": environment.CompleteDict,
    },
    "restore": {
        "moved": checkpoints.MovedDict,
        "manifest": checkpoints.LentDict,
        "listening": checkpoints.LendingDict,
        "complete": environment.CompleteDict,
    },
}


def check_result(verb: str, data: Mapping[str, Any], host: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated result of ``verb``, as ``host`` sent it for a call with ``args``.

    Raises:
        RemoteError: the data do not fit the verb (kind ``protocol``).
    """
    found: dict[str, Any] = _checked(RESULTS[verb], verb, data, host, args)
    return found


def check_frame(verb: str, received: Frame, host: str, args: Mapping[str, Any]) -> Frame:
    """Return a validated frame that came before the result.

    Raises:
        RemoteError: the frame does not fit the verb (kind ``protocol``).
    """
    for key, shape in FRAMES.get(verb, {}).items():
        if key in received.data:
            return Frame(_checked(shape, verb, received.data, host, args), received.raw)
    raise garbled(f"{verb}: a message of an unknown kind")


def _checked(shape: Any, verb: str, data: Mapping[str, Any], host: str, args: Mapping[str, Any]) -> Any:
    try:
        return adapter(shape).validate_python(data, context={"host": host, "args": args})
    except ValidationError as error:
        raise garbled(f"{verb}: {first_fault(error)}") from None
