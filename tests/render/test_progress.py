"""A live display makes room for a question, from whatever thread it is asked."""

from __future__ import annotations

import io

from rich.console import Console

from ddpctl.render.progress import ProgressView, quiet
from ddpctl.spec.event import StageEnded, StageStarted


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
    assert out.getvalue().split() == ["preflight", "2", "errors", "0.0s"]


def test_a_remembered_preflight_took_no_time() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out)) as view:
        view.tell(StageEnded("preflight", True, result="ok, 13 s ago"))
    assert out.getvalue().strip() == "preflight     ok, 13 s ago"
