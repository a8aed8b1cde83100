"""However one host's reading ends, the following ends too, and the other hosts' output is all there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl.errors import DdpctlError, InternalFault, RemoteError, Unreachable
from ddpctl.spec.event import Event, Note
from ddpctl.spec.lines import Group
from ddpctl.spec.noise import Held
from ddpctl.stages import follow as stage
from ddpctl.stages.follow import follow
from ddpctl.stages.limits import WORKER_DEATHS
from ddpctl.transport import limits
from ddpctl.transport.base import Frame
from ddpctl.transport.conversation import worker_died
from ddpctl_worker.wire import contract
from tests.transport.dry import Answer, Asked, DryFleet, DryTransport, Stream

LINES = {
    "rank": [0], "stream": ["stdout"], "time": [5.0], "text": ["loss"], "end": ["\n"], "offset": [5], "attempt": [1],
}  # fmt: skip
FRAME = Frame({"lines": LINES, "offset": 5, "more": False})
WELL = Stream([FRAME], {"offset": 5, "state": "succeeded"})


def broken(_asked: Asked) -> Stream:
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (broken, InternalFault),
        (Stream([Frame({"lines": {"rank": [0]}})], WELL.result), RemoteError),
        (Stream([Frame({**FRAME.data, "lines": {**LINES, "rank": [0, 1]}})], WELL.result), RemoteError),
        (Stream(WELL.frames, {"offset": 5}), RemoteError),
    ],
)
@pytest.mark.parametrize("lasting", [True, False])
def test_one_host_that_cannot_be_read(answer: object, kind: type[DdpctlError], lasting: bool) -> None:
    told: list[Event] = []
    shown: list[Group] = []
    fleet = DryFleet([DryTransport("a", {"tail": WELL}), DryTransport("b", {"tail": answer})])  # type: ignore[dict-item]
    errors = follow("run", ["a", "b"], fleet, told.append, shown.extend, follow=lasting)
    assert list(errors) == ["b"]
    assert isinstance(errors["b"], kind)
    assert [line.text for group in shown for line in group if line.host == "a"] == ["loss"]
    # While the other hosts are still followed, a note about b comes at once.
    assert all("no longer followed" in note.message for note in told if isinstance(note, Note))


@pytest.mark.parametrize("lasting", [True, False])
def test_a_host_that_has_left_the_inventory_is_no_bad_usage(lasting: bool) -> None:
    shown: list[Group] = []
    fleet = DryFleet([DryTransport("a", {"tail": WELL})])
    errors = follow("run", ["a", "gone"], fleet, lambda event: None, shown.extend, follow=lasting)
    assert [(host, error.exit_code) for host, error in errors.items()] == [("gone", 4)]
    assert len(shown) == 1


@pytest.mark.parametrize("restarts", [True, False])
def test_a_short_cut_ends_no_following_of_a_run_with_restarts(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With restarts, a lost host does not end the run: the other hosts may go on.

    Without restarts the run is over once a host has failed.
    """
    monkeypatch.setattr(stage, "GIVE_UP_FAILED_S", 0.0)
    cut: list[Unreachable | Stream] = [Unreachable("no route", host="b")] * 3  # the pauses are 0.5 s, 1 s and 2 s
    answers = iter([*cut, WELL])
    lost = Stream((), {"offset": 0, "state": "lost"})
    b = DryTransport("b", {"tail": lambda _: next(answers)})
    shown: list[Group] = []
    fleet = DryFleet([DryTransport("a", {"tail": lost}), b])
    # In the pauses (3.5 s) the loop without restarts gives b up: its patience is GIVE_UP_FAILED_S. The loop with
    # restarts has the patience GIVE_UP_S. So the pauses are short with restarts and long without, here.
    factor = 0.2 if restarts else 5.0

    def wait(over: threading.Event, seconds: float) -> bool:
        return over.wait(factor * seconds)

    errors = follow("run", ["a", "b"], fleet, lambda event: None, shown.extend, restarts=restarts, wait=wait)
    assert list(errors) == ([] if restarts else ["b"])
    assert bool(shown) == restarts


@pytest.mark.parametrize(
    "gone",
    [
        Stream((), {"offset": 0, "state": "lost"}),
        RemoteError("the run is not on this node", kind=contract.NO_SUCH_RUN, host="b"),
    ],
    ids=["agent", "record"],
)
def test_a_run_with_restarts_says_which_hosts_it_has_lost(gone: Stream | RemoteError) -> None:
    told: list[Event] = []
    fleet = DryFleet([DryTransport("a", {"tail": WELL}), DryTransport("b", {"tail": gone})])
    follow("run", ["a", "b"], fleet, told.append, lambda groups: None, restarts=True)
    (note,) = (one for one in told if isinstance(one, Note))
    assert (note.host, note.level) == ("b", "warning")
    assert "takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again" in note.message


def test_a_run_that_has_lost_its_majority_says_what_to_do() -> None:
    """Host a answers only after the note, so it is still there while b and c are lost."""
    told: list[Event] = []
    enough = threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        if isinstance(event, Note) and event.host is None:
            enough.set()

    def wait_for_it(_: Asked) -> Stream:
        assert enough.wait(60)
        return WELL

    lost: Answer = Stream((), {"offset": 0, "state": "lost"})
    fleet = DryFleet([DryTransport("a", {"tail": wait_for_it}), *(DryTransport(host, {"tail": lost}) for host in "bc")])
    follow("run", ["a", "b", "c"], fleet, tell, lambda groups: None, restarts=True)
    notes = [one.message for one in told if isinstance(one, Note) and one.host is None]
    assert [note.partition(";")[0] for note in notes] == [
        "1 of the run's 3 hosts left, no majority: they start no other attempt"
    ]
    assert notes[0].endswith("ddpctl kill run, then ddpctl restart run")


@pytest.mark.parametrize("deaths", [1, 3, 100])
def test_a_worker_that_is_killed_ends_no_following(deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is lost: the next worker reads on. The following ends only after too many deaths in a row."""
    monkeypatch.setattr(limits, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(limits, "RETRY_MOST_S", 0.02)
    answers: Iterator[RemoteError | Stream] = iter([*[worker_died("exit status 137")] * deaths, WELL])
    fleet = DryFleet([DryTransport("a", {"tail": lambda _: next(answers)})])
    told: list[Event] = []
    shown: list[Group] = []
    errors = follow("run", ["a"], fleet, told.append, shown.extend)
    if deaths > WORKER_DEATHS:
        assert "the worker ended without a result" in str(errors["a"])
    else:
        assert not errors
        assert [line.text for group in shown for line in group] == ["loss"]
    assert [note.message.endswith("trying again") for note in told if isinstance(note, Note)] == [True]


@pytest.mark.parametrize("starts", [True, False])
def test_a_host_that_a_start_has_not_reached_yet_is_asked_again(starts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "RUN_APPEARS_POLL_S", 0.01)
    absent = RemoteError("no such run", kind=contract.NO_SUCH_RUN, host="b")
    answers: Iterator[RemoteError | Stream] = iter([absent, absent, WELL])
    fleet = DryFleet([DryTransport("a", {"tail": WELL}), DryTransport("b", {"tail": lambda _: next(answers)})])
    shown: list[Group] = []
    errors = follow("run", ["a", "b"], fleet, lambda event: None, shown.extend, starts=starts)
    assert list(errors) == ([] if starts else ["b"])
    assert len([line for group in shown for line in group]) == (2 if starts else 1)


@pytest.mark.parametrize("lasting", [True, False])
def test_what_was_shown_is_what_is_remembered(lasting: bool) -> None:
    """Lines come in the order of time, and are printed before their offsets are saved. A known warning is held back."""

    def frame(texts: list[str], ranks: list[int | None], times: list[float], more: bool) -> Frame:
        count = len(texts)
        columns = {"rank": ranks, "stream": ["stderr"] * count, "time": times, "text": texts, "end": ["\n"] * count}
        columns |= {"offset": [int(time * 10) for time in times], "attempt": [1] * count}
        return Frame({"lines": columns, "offset": int(times[-1] * 10), "more": more})

    notice = "torch/distributed/launch.py:207: FutureWarning: The module torch.distributed.launch is deprecated"
    a = Stream([frame([notice, "x"], [None, 0], [1.0, 2.0], True), frame(["y"], [0], [4.0], False)], WELL.result)
    b = Stream([frame(["x", "z"], [1, 1], [2.1, 3.0], False)], WELL.result)
    done: list[Any] = []
    noise = Held()
    fleet = DryFleet([DryTransport("a", {"tail": a}), DryTransport("b", {"tail": b})])
    follow(
        "run",
        ["a", "b"],
        fleet,
        lambda event: None,
        done.extend,
        save=lambda offsets: done.append(dict(offsets)),
        noise=noise,
        follow=lasting,
    )
    shown = [[(line.host, line.text) for line in group] for group in done if isinstance(group, list)]
    assert shown == [[("a", "x"), ("b", "x")], [("b", "z")], [("a", "y")]]
    for index, offsets in enumerate(done):
        if isinstance(offsets, dict):
            seen = [line for group in done[:index] if isinstance(group, list) for line in group]
            assert offsets == {line.host: line.offset for line in sorted(seen)}
    assert done[-1] == {"a": 40, "b": 30}
    assert [line.text for line in noise.lines] == [notice]
