"""What a worker says, checked: the one place where frames become values.

A node may be broken or hostile. What passes here has the fields, types and bounds that the stages rely on, speaks of
the host and the run that were asked for, and holds nothing else: a field without a shape is dropped. Whatever does not
pass is that host's error of kind ``protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ddpctl.transport.base import Frame
from ddpctl.transport.pipe import garbled
from ddpctl.transport.shapes import environment, preflight, runs
from ddpctl.transport.shapes.words import adapter, first_fault

RESULTS: Mapping[str, Any] = {
    "echo": dict[str, Any],
    "probe": preflight.Probed,
    "start": runs.Started,
    "status": runs.Runs,
    "stop": runs.Stopped,
    "metrics": runs.Metrics,
    "tail": runs.Tailed,
    "fetch": runs.Fetched,
    "store_has": environment.Holdings,
    "store_put": environment.Nothing,
    "listen": environment.Nothing,
    "dial": preflight.Dialled,
    "free_port": preflight.FreePorts,
    "firewall": preflight.Firewall,
    "rehearse": preflight.Rehearsed,
    "spread": environment.Spread,
    "install": environment.Installed,
    "build": environment.Built,
    "gc": environment.Collected,
}
# verb -> the key by which a kind of frame is known -> its shape
FRAMES: Mapping[str, Mapping[str, Any]] = {
    "echo": {"n": dict[str, Any]},
    "tail": {"lines": runs.Lines, "state": runs.Standing},
    "fetch": {"file": runs.FileFrame, "chunk": runs.Chunk},
    "listen": {"listening": preflight.Listening},
    "firewall": {"tool": preflight.Rules},
    "build": {"piece": environment.Piece},
    "spread": {
        "listening": environment.Joined,
        "progress": environment.Passed,
        "want": environment.Wanted,
        "left": environment.Left,
        "complete": environment.Complete,
    },
}


def result(verb: str, data: Mapping[str, Any], host: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a verb that was asked of ``host`` with ``args``.

    Raises:
        RemoteError: it is not what the verb answers (kind ``protocol``).
    """
    found: dict[str, Any] = _checked(RESULTS[verb], verb, data, host, args)
    return found


def frame(verb: str, one: Frame, host: str, args: Mapping[str, Any]) -> Frame:
    """A frame before the result; raises as ``result`` does."""
    for key, shape in FRAMES.get(verb, {}).items():
        if key in one.data:
            return Frame(_checked(shape, verb, one.data, host, args), one.raw)
    raise garbled(f"{verb}: a message of no known kind")


def _checked(shape: Any, verb: str, data: Mapping[str, Any], host: str, args: Mapping[str, Any]) -> Any:
    try:
        return adapter(shape).validate_python(data, strict=True, context={"host": host, "args": args})
    except ValidationError as error:
        raise garbled(f"{verb}: {first_fault(error)}") from None
