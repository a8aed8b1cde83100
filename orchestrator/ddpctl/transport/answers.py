"""Validates what a worker sends: no other module turns frames into values.

A node may be broken or hostile. A validated answer has the fields, types and bounds that the stages rely on, and is
about the host and the run that the request named. Fields without a declared shape are dropped. An answer that does not
pass is an error of that host, of kind ``protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from typing_extensions import NotRequired

from ddpctl.spec.bounds import (
    IP,
    Count,
    Digits,
    Figure,
    File,
    Flag,
    Hash,
    Integer,
    Moment,
    Name,
    NodeState,
    Number,
    Place,
    Port,
    Real,
    Short,
    Small,
    Unicode,
    Whole,
)
from ddpctl.spec.curves import RankCurves
from ddpctl.spec.gpuuse import RecordedGpus
from ddpctl.spec.kill import Survivor
from ddpctl.spec.outcome import CheckpointLag, Straggler, StuckRun
from ddpctl.spec.push import Garbage
from ddpctl.spec.record import RecordedLaunch
from ddpctl.spec.resuming import Holdings
from ddpctl.spec.top import Pulse
from ddpctl.transport.base import Frame
from ddpctl.transport.pipe import garbled
from ddpctl.transport.shapes import preflight, runs
from ddpctl.transport.shapes.adapters import adapter, first_fault, shape_of

NOTHING = shape_of()
STARTED = shape_of(
    status=runs.Status,
    port=NotRequired[Port | None],
    beside=NotRequired[tuple[Name, ...]],
    unclaimed=NotRequired[Short | None],
    machine=NotRequired[Short],
)
CHUNK = shape_of(chunk=Literal[True])
COMPLETE = shape_of(complete=Literal[True])
FILE = shape_of(
    file=shape_of(
        path=Place,
        size=Count,
        mode=NotRequired[Annotated[Integer, Field(ge=0, le=0o7777)]],
        offset=NotRequired[Count],
        mtime_ns=NotRequired[Whole],
    )
)
RESULTS: Mapping[str, Any] = {
    "echo": dict[Unicode, Any],
    "ask_checkpoint": shape_of(
        ranks=Annotated[list[Small], Field(max_length=100_000)],
        deaf=Annotated[list[shape_of(rank=Small, pid=Count)], Field(max_length=100_000)],  # type: ignore[misc]
        absent=Small,
        sent=Flag,
        newest=Moment | None,
    ),
    "doctor": shape_of(
        state=NodeState,
        ended=Flag,
        looks=Annotated[list[runs.LookDict], Field(max_length=10_000)],
        slow=tuple[Straggler, ...],
    ),
    "probe": shape_of(answers=preflight.Answers, received=Number, sent=Number),
    "start": STARTED,
    "status": shape_of(runs=runs.Statuses, left_out=NotRequired[Count]),
    "untracked": runs.OwnUntracked,
    "stop": shape_of(signalled=Count, forced=Count, survivors=tuple[Survivor, ...], status=runs.Status),
    "remove": shape_of(removed=Flag),
    "metrics": shape_of(ranks=dict[Digits, shape_of(offset=Count, lines=list[dict[Short, Figure]])]),  # type: ignore[misc]
    "history": shape_of(
        launch=RecordedLaunch,
        gpus=Annotated[dict[Digits, RecordedGpus], Field(max_length=200)],
        network=preflight.RecordedNetwork | None,
        attempts=Annotated[dict[Digits, dict[Digits, RankCurves]], Field(max_length=200)],
    ),
    "tail": shape_of(offset=Count, state=NodeState),
    "top": NOTHING,
    "fetch": shape_of(missing=list[Short]),
    "fetch_checkpoint": NOTHING,
    "checkpoints": shape_of(
        manifests=Annotated[list[runs.ManifestDict], Field(max_length=100_000)],
        unknown=Annotated[list[runs.UnknownDict], Field(max_length=100_000)],
    ),
    "set_aside": shape_of(name=Annotated[Unicode, Field(pattern=r"^[A-Za-z0-9._-]{1,63}@[0-9TZ]{16}$")] | None),
    "store_has": Holdings,
    "store_get": NOTHING,
    "store_put": NOTHING,
    "data_missing": shape_of(
        there=Flag, listed=Flag, missing=Annotated[list[tuple[Count, Count]], Field(max_length=10_000)]
    ),
    "data_place": shape_of(path=File, replaced=Short | None),
    "listen": NOTHING,
    "dial": preflight.Dialled,
    "free_port": shape_of(ports=preflight.AllPorts),
    "firewall": shape_of(uid=Count, ufw=Flag, firewalld=Flag, errors=dict[Short, Short]),
    "rehearse": preflight.RehearsedDict,
    "begin": STARTED,
    "line_up": STARTED,
    "slots": runs.OwnSlots,
    "spread": shape_of(found=Count, relayed=Count),
    "restore": shape_of(
        bytes=Count,
        aside=Annotated[list[shape_of(entry=Place, name=Place)], Field(max_length=100_000)],  # type: ignore[misc]
        left=Annotated[list[Place], Field(max_length=100_000)],
    ),
    "install": shape_of(python=File, env=Name, versions=dict[Short, Short | None], seconds=Number),
    # A wheel, whose bytes came before; or the requirements that its build lacks.
    "build": shape_of(
        needs=NotRequired[list[Short]], name=NotRequired[Place], hash=NotRequired[Hash], size=NotRequired[Count]
    ),
    "gc": shape_of(items=tuple[Garbage, ...]),
}
# verb -> key that identifies a kind of frame -> shape of that frame
FRAMES: Mapping[str, Mapping[str, Any]] = {
    "echo": {"n": dict[Unicode, Any]},
    "tail": {
        "lines": runs.LinesDict,
        "state": shape_of(state=NodeState, heartbeat_age_s=NotRequired[Number | None]),
        "stuck": shape_of(stuck=StuckRun | None),
        "lag": shape_of(lag=CheckpointLag),
    },
    "top": {"run": shape_of(run=runs.Status), "pulse": shape_of(pulse=Pulse)},
    "stop": {
        "growing": shape_of(growing=shape_of(path=Short, size=Count, left=Annotated[Real, Field(ge=0, le=1e9)])),
    },
    "fetch": {"file": FILE, "chunk": CHUNK},
    "fetch_checkpoint": {"file": FILE, "chunk": CHUNK},
    "store_get": {"chunk": CHUNK},
    "listen": {
        "listening": shape_of(listening=list[Port], samples=list[Port], taken=list[shape_of(port=Port)]),  # type: ignore[misc]
    },
    "firewall": {"tool": shape_of(tool=Literal["nft", "iptables", "ip6tables"])},  # the rules follow as raw bytes
    "build": {"piece": shape_of(piece=Count)},
    "spread": {
        "listening": shape_of(listening=Port, addresses=list[IP], have=list[Hash], done=Count),
        "progress": shape_of(progress=Count),
        "want": shape_of(want=list[tuple[Hash, Count]]),
        "left": shape_of(left=Name, why=Short),
        "complete": COMPLETE,
    },
    "restore": {
        "moved": shape_of(moved=Count),  # bytes that the host has hashed and fetched so far
        "manifest": shape_of(manifest=runs.ManifestDict),
        "listening": shape_of(listening=Port, addresses=list[IP]),
        "complete": COMPLETE,
    },
}


def check_result(verb: str, data: Mapping[str, Any], host: str, args: Mapping[str, Any]) -> Any:
    """Return the validated result of ``verb``, as ``host`` sent it for a call with ``args``.

    Raises:
        RemoteError: the data do not fit the verb (kind ``protocol``).
    """
    return _checked(RESULTS[verb], verb, data, host, args)


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
