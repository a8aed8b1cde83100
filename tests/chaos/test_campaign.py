"""A short campaign on real hosts, and the eyes of its checker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.catalogue import choices
from tests.chaos.plan import PLAIN, Round, plan
from tests.chaos.sight import BASE, Watch, left, runs
from tests.e2e.site import until
from tests.lab import Lab, missing

SEED = 6
KINDS = {"kill-rank", "kill-supervisor", "kill-guardian", "sessions-killed", "disk-full", "two-kills"}
PLAN = plan(SEED, len(KINDS), choices(KINDS))
# A fault that another test in `make test` plays is for `make test-all`.
COVERED = {
    "kill-rank": pytest.mark.full(
        covered_by="tests/e2e/test_failures.py::test_one_rank_fails_and_the_others_wait_for_ever"
    ),
    "kill-supervisor": pytest.mark.full(covered_by="tests/e2e/test_accidents.py::test_supervisor_killed"),
    "kill-guardian": pytest.mark.full(
        covered_by="tests/worker/run/test_watchers.py::test_a_standby_that_dies_at_once_is_replaced"
    ),
    "disk-full": pytest.mark.full(
        covered_by="tests/worker/verbs/test_output.py::test_a_full_disk_costs_lines_but_neither_the_job_nor_its_record"
    ),
}


def marks_of(round: Round) -> list[pytest.MarkDecorator]:
    """A job of restarts trains with the real torch."""
    full = [COVERED[round.fault]] if round.fault in COVERED else []
    return [*full, *([] if round.job == PLAIN else [pytest.mark.heavy])]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, stand_in: str) -> Iterator[Campaign]:
    if reason := missing():
        pytest.skip(reason)
    with Campaign(tmp_path_factory.mktemp("chaos")) as found:
        yield found
        assert found.lost_records() == []


@pytest.mark.lab
@pytest.mark.parametrize("round", [pytest.param(one, id=one.fault, marks=marks_of(one)) for one in PLAN])
def test_a_fault(campaign: Campaign, round: Round, request: pytest.FixtureRequest) -> None:
    if round.job != PLAIN:
        request.getfixturevalue("python213")
    assert campaign.play(round).violations == ()


def test_what_is_left_in_a_host_is_seen(lab3: Lab) -> None:
    assert left(lab3[0]) == []
    with lab3[0].popen(["sleep", "50"]) as sleeper:
        until(lambda: left(lab3[0]))
        assert "sleep 50" in left(lab3[0])[0]
        lab3.heal()
        sleeper.wait(60)
    assert left(lab3[0]) == []


def test_a_new_run_and_each_end_that_its_record_ever_told_are_seen(lab3: Lab) -> None:
    host, place = lab3[1], f"{BASE}/runs/r1/node1"
    with Watch({host: BASE}) as watch:
        assert watch.new_runs() == set()
        host.write(f"{place}/run.json", "{}")
        assert watch.new_runs() == {"r1"}
        assert runs(host, BASE) == {"r1"}
        watch.run = "r1"
        for state in ("killed", "failed"):
            text = json.dumps({"state": state})
            host.write(f"{place}/exit.json", text)
            until(lambda text=text: watch.seen["node1"].exits[-1:] == [text.encode()])  # type: ignore[misc]
    assert len(watch.seen["node1"].exits) >= 2
    assert watch.record(host, "exit.json") == text.encode()


def test_records_of_a_host_without_power_are_read_from_its_disk(lab3: Lab) -> None:
    host = lab3[2]
    host.write(f"{BASE}/runs/r2/node2/run.json", "{}")
    host.power_off()
    assert runs(host, BASE) == {"r2"}
