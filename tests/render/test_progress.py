"""A live display makes room for a question, from whatever thread it is asked."""

from __future__ import annotations

import io
import re

from rich.console import Console

from ddpctl.render.progress import Arrived, ProgressView, describe_arrivals, quiet
from ddpctl.spec.event import Progress, StageEnded, StageStarted


def test_a_display_stands_back_while_a_person_is_asked() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with ProgressView(console) as view:
        live = view._progress.live
        view.tell(StageStarted("preflight", 2))
        assert live.is_started
        with quiet():
            assert not live.is_started
            with quiet():
                view.tell(StageStarted("mesh", 2))
            assert not live.is_started, "the first question is still open"
            view.tell(StageEnded("mesh", True))
        assert live.is_started
        with quiet():
            view.tell(StageEnded("preflight", True))
        assert not live.is_started


def test_a_stage_that_found_errors_is_not_called_ok() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out)) as view:
        view.tell(StageStarted("preflight", 2))
        view.tell(StageEnded("preflight", False, result="2 errors"))
    assert re.fullmatch(r"preflight 2 errors \d+\.\ds", " ".join(out.getvalue().split()))


def test_a_stage_that_never_began_has_no_duration() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out)) as view:
        view.tell(StageEnded("preflight", True, result="ok, 27 s ago"))
    assert out.getvalue().split() == ["preflight", "ok,", "27", "s", "ago"]


def test_a_transfer_shows_hosts_that_are_ready_the_rate_and_slow_hosts() -> None:
    hosts = {"a": Arrived(0, 100_000_000, 100_000_000), "b": Arrived(0, 60_000_000, 100_000_000)}
    assert describe_arrivals(hosts, 10) == "1 of 2 hosts  8.0 MB/s"
    slow = {**hosts, "c": Arrived(5_000_000, 5_000_000, 100_000_000)}
    assert describe_arrivals(slow, 10) == "1 of 3 hosts  5.3 MB/s  slow: c (5%)"
    assert "slow" not in describe_arrivals({name: Arrived(0, int(name == "a"), 100) for name in "abc"}, 1)


def test_the_line_of_a_transfer_is_drawn_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with ProgressView(console) as view:
        view.tell(StageStarted("data", 10, "bytes"))
        for host, done in (("a", 10), ("b", 4)):
            view.tell(Progress("data", done, 10, host))
        (task, *_) = view._progress.tasks
        assert (task.completed, task.fields["note"]) == (7, "1 of 2 hosts  0.0 MB/s")
        view.tell(StageEnded("data", True))
