"""Which checkpoint a start resumes from, and whose it is."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from ddpctl.spec.origin import Origin
from ddpctl.spec.resuming import Resumed, Start, newest, start_of

NOW = datetime(2026, 1, 2, 12, 4, tzinfo=timezone.utc)
FIRST = Start("r1", "2026-01-02T10:00:00+00:00", Origin("ann", "laptop", "/a", 1))
SECOND = Start("r2", "2026-01-02T11:00:00+00:00", None)


@pytest.mark.parametrize(("minute", "start"), [("09:59", None), ("10:00", FIRST), ("10:59", FIRST), ("11:30", SECOND)])
def test_the_last_run_that_had_started_saved_it(minute: str, start: Start | None) -> None:
    assert start_of(f"2026-01-02T{minute}:00+00:00", [FIRST, SECOND]) == start


def test_the_newest_of_all_hosts_counts_and_its_writer_is_asked_for_the_run() -> None:
    late, early = "2026-01-02T11:30:00+00:00", "2026-01-02T10:30:00+00:00"
    rows = {
        "a": [("a", "step_2.pt", "v2", early), ("b", "step_4.pt", "v4", late)],
        "b": [("b", "step_4.pt", "v4", late)],
    }
    assert newest(rows, {"a": [FIRST], "b": [FIRST, SECOND]}) == Resumed("step_4.pt", late, SECOND)
    assert newest({"a": [], "b": []}, {}) is None


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
