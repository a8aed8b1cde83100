"""However one host's reading ends, the following ends too, and the other hosts' output is all there."""

from __future__ import annotations

import pytest

from ddpctl.errors import DdpctlError, InternalFault, RemoteError, Unreachable
from ddpctl.spec.event import Event, Line, Note
from ddpctl.stages import follow as stage
from ddpctl.stages.follow import follow
from ddpctl.transport.base import Frame
from tests.transport.dry import Asked, DryFleet, DryTransport, Stream

LINE = {"rank": 0, "stream": "stdout", "time": "2026-01-02T03:04:05+00:00", "text": "loss", "end": "\n", "offset": 5}
WELL = Stream([Frame({"lines": [LINE]})], {"offset": 5, "state": "succeeded"})


def broken(_asked: Asked) -> Stream:
    raise ZeroDivisionError("oh")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (broken, InternalFault),
        (Stream([Frame({"lines": [{"rank": 0}]})], WELL.result), RemoteError),
        (Stream([Frame({"lines": [LINE, 7]})], WELL.result), RemoteError),
        (Stream(WELL.frames, {"offset": 5}), RemoteError),
    ],
)
@pytest.mark.parametrize("lasting", [True, False])
def test_one_host_that_cannot_be_read(answer: object, kind: type[DdpctlError], lasting: bool) -> None:
    told: list[Event] = []
    fleet = DryFleet([DryTransport("a", {"tail": WELL}), DryTransport("b", {"tail": answer})])  # type: ignore[dict-item]
    errors = follow("run", ["a", "b"], fleet, told.append, follow=lasting)
    assert list(errors) == ["b"]
    assert isinstance(errors["b"], kind)
    assert [line.text for line in told if isinstance(line, Line) and line.host == "a"] == ["loss"]
    # Where the others are followed on, it is said at once.
    assert all("no longer followed" in note.message for note in told if isinstance(note, Note))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("restarts", [True, False])
def test_a_short_cut_ends_no_following_of_a_run_with_restarts(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of it that is lost says nothing of the others. Else the run is over once one has failed."""
    monkeypatch.setattr(stage, "GIVE_UP_FAILED_S", 0.0)
    cut: list[Unreachable | Stream] = [Unreachable("no route", host="b")] * 3  # half a second, then one, then two
    answers = iter([*cut, WELL])
    lost = Stream((), {"offset": 0, "state": "lost"})
    b = DryTransport("b", {"tail": lambda _: next(answers)})
    told: list[Event] = []
    errors = follow("run", ["a", "b"], DryFleet([DryTransport("a", {"tail": lost}), b]), told.append, restarts=restarts)
    assert list(errors) == ([] if restarts else ["b"])
    assert any(isinstance(line, Line) for line in told) == restarts
