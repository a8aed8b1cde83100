"""What a run may be called, and what is said where a word does not name one run."""

from __future__ import annotations

import pytest

from ddpctl.errors import UsageError
from ddpctl.spec.names import ambiguous, check_run_name
from ddpctl_worker.wire.contract import begins

JOBS = ("train", "eval")


@pytest.mark.parametrize("name", ["train", "train-lr01", "9", "a" * 63])
def test_names_for_a_run(name: str) -> None:
    check_run_name(name, "train", JOBS)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not a valid name"),
        ("-x", "not a valid name"),
        ("a/b", "not a valid name"),
        ("a\n", "not a valid name"),
        ("a" * 64, "not a valid name"),
        ("eval", "another job of this inventory"),
        ("20260101T000000Z-abc123", "form of a run id"),
    ],
)
def test_names_that_would_mean_something_else(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        check_run_name(name, "train", JOBS)
    assert caught.value.hint


def test_a_beginning_has_four_letters_at_least() -> None:
    run = "20260101T000000Z-abc123"
    assert begins(run, "2026")
    assert begins(run, run)
    assert not begins(run, "202")
    assert not begins(run, "0101")


def test_of_many_runs_the_newest_are_named() -> None:
    error = ambiguous("2026", [f"202601{day:02}T000000Z-abc123" for day in range(1, 21)])
    assert "of 20 run ids: 20260120T000000Z-abc123, 20260119T" in error.message
    assert error.message.endswith("20260113T000000Z-abc123 and 12 older ones")
    assert error.exit_code == 2
