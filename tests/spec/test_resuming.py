"""The checkpoint from which a start resumes, and its owner."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ddpctl.spec.origin import Origin
from ddpctl.spec.resuming import Resumed, Start, newest_resumed, start_of

NOW = datetime(2026, 1, 2, 12, 4, tzinfo=timezone.utc)
FIRST = Start("r1", Origin("ann", "laptop", "/a", 1))
SECOND = Start("r2", None)


def test_the_run_that_saved_it_is_known_where_a_host_has_its_start_on_record() -> None:
    starts = {"a": [FIRST], "b": [FIRST, SECOND]}
    assert [start_of(run, starts) for run in ("r1", "r2", "r3", None)] == [FIRST, SECOND, None, None]


def row(writer: str, entry: str, serial: int, time: str) -> dict[str, Any]:
    """A checkpoint of run ``serial``."""
    of_run = {"serial": serial, "run": f"r{serial}", "attempt": 1}
    return {"writer": writer, "entry": entry, "version": entry, "time": time, "clock": writer, **of_run}


def test_the_checkpoint_of_the_last_run_counts_whatever_the_clocks_say() -> None:
    late, early = "2026-01-02T11:30:00+00:00", "2026-01-02T10:30:00+00:00"
    rows = {
        "a": [row("a", "step_2.pt", 1, late), row("b", "step_4.pt", 2, early)],
        "b": [row("b", "step_4.pt", 2, early)],
    }
    assert newest_resumed(rows, {"a": [FIRST], "b": [FIRST, SECOND]}) == Resumed("step_4.pt", early, SECOND)
    assert newest_resumed({"a": [], "b": []}, {}) is None


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            Resumed("step_120", "2026-01-02T12:00:00+00:00", SECOND),
            "resumes from step_120 (step 120, saved 4 min ago by run r2); `ddpctl up --fresh` starts without it",
        ),
        (
            Resumed("best.ckpt", "2026-01-02T12:04:30+00:00"),  # by a clock that is ahead
            "resumes from best.ckpt (saved 0.0 s ago); `ddpctl up --fresh` starts without it",
        ),
    ],
)
def test_the_line_at_the_start(found: Resumed, line: str) -> None:
    assert found.line(NOW) == line
