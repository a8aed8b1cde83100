"""How the ranks' own numbers add up to the job's."""

from __future__ import annotations

from ddpctl.spec.metrics import job_metrics


def test_what_one_rank_writes_is_the_job_s() -> None:
    assert job_metrics([{"loss": 0.5, "samples_per_s": 100.0}, {}]) == {"loss": 0.5, "samples_per_s": 100.0}


def test_rates_add_up_counters_do_not_and_the_rest_is_averaged() -> None:
    ranks = [{"step": 7, "samples_per_s": 100, "loss": 0.25}, {"step": 9, "samples_per_s": 50, "loss": 0.75}]
    assert job_metrics(ranks) == {"step": 9, "samples_per_s": 150, "loss": 0.5}


def test_nothing_written_is_nothing() -> None:
    assert job_metrics([]) == {}
