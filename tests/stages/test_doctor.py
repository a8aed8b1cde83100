"""The looks of all hosts together, and the verdict."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ddpctl.errors import HostsFailed, RemoteError, Unreachable
from ddpctl.spec.doctor import DoctorReport
from ddpctl.stages.doctor import ask_doctor
from tests.transport.dry import Asked, DryFleet, DryTransport
from tests.worker.looks import ODD, WAIT, Look, behind, waits_in

HOSTS = ["node0", "node1"]
TIME = "2026-01-02T03:04:05+00:00"


@pytest.fixture(autouse=True)
def _home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def status(host: str, state: str = "running", **more: Any) -> dict[str, Any]:
    number = HOSTS.index(host)
    record = {"project": "exp", "hosts": HOSTS, "world_size": 4, "doctor": {"stall": 15.0}}
    names = {"run": "r1", "job": "train", "cluster": "lab", "host": host, "node_rank": number, "state": state}
    return {"runs": [{**names, "ranks": [2 * number, 2 * number + 1], "record": record, **more}]}


def host(
    name: str, *looks: Look, state: str = "running", ended: bool = False, late: tuple[int, ...] = (), **more: Any
) -> DryTransport:
    slow = [{"host": name, "rank": rank, "lag_ms": 20.0, "last_share": 0.9} for rank in late]
    answer = {"state": state, "ended": ended, "looks": list(looks), "slow": slow}
    return DryTransport(name, {"status": status(name, state, **more), "doctor": answer})


def consulted(*hosts: DryTransport) -> DoctorReport:
    return ask_doctor(DryFleet(hosts), "train")


def suspects(found: DoctorReport) -> list[int]:
    return [one["rank"] for one in found.diagnosis.suspects]


def test_the_looks_of_all_hosts_decide_together() -> None:
    found = consulted(host("node0", waits_in(0), waits_in(1)), host("node1", behind(2), waits_in(3)))
    assert found.diagnosis.verdict == WAIT + ODD
    assert suspects(found) == [2]
    assert [one["rank"] for one in found.looks] == [0, 1, 2, 3]
    assert (found.job, found.run, found.state, found.ended, found.errors) == ("train", "r1", "running", False, {})


def test_all_hosts_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"node{number}" for number in range(40)]  # more than are otherwise worked on at a time
    monkeypatch.setattr(f"{__name__}.HOSTS", many)
    meeting = threading.Barrier(len(many))

    def look(asked: Asked) -> dict[str, Any]:
        meeting.wait(60)
        return {"state": "running", "ended": False, "looks": [], "slow": []}

    found = consulted(*(DryTransport(name, {"status": status(name), "doctor": look}) for name in many))
    assert found.errors == {}


def test_the_node_that_decides_says_who_is_slow() -> None:
    """It answers, or its last report that another node has heard counts."""
    heard = {"host": "node0", "rank": 1, "lag_ms": 20.0, "last_share": 0.9}
    other = host("node1", waits_in(2), late=(2,), slow=[heard], reported="2026-01-01T00:00:01Z")
    gone = DryTransport("node0", {}, unreachable=Unreachable("no route", host="node0"))
    for first, slow in ((host("node0", waits_in(0), late=(3,)), [3]), (host("node0", waits_in(0)), []), (gone, [1])):
        assert [one.rank for one in consulted(first, other).slow] == slow


def test_the_stall_is_the_jobs_or_what_the_run_has_done_before() -> None:
    def all_wait(seconds: float, pause: float = 0.0) -> bool:
        looks = [waits_in(rank, seconds=seconds, pause_s=pause) for rank in range(4)]
        return consulted(host("node0", *looks[:2]), host("node1", *looks[2:])).diagnosis.stuck

    assert [all_wait(14.0), all_wait(16.0), all_wait(40.0, pause=50.0), all_wait(55.0, pause=50.0)] == [
        False,
        True,
        False,
        True,
    ]


def test_a_host_that_does_not_answer_is_named_with_the_reason() -> None:
    broken = DryTransport("node1", {"status": status("node1"), "doctor": RemoteError("no such verb", host="node1")})
    found = consulted(host("node0", waits_in(0), waits_in(1)), broken)
    text = "2 of 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; node1 did not answer"
    assert found.diagnosis.verdict == text
    assert found.diagnosis.missing == ["node1 did not answer: no such verb"]
    assert suspects(found) == []
    assert set(found.errors) == {"node1"}


def test_a_host_that_is_out_of_reach() -> None:
    away = DryTransport("node1", unreachable=Unreachable("no route", host="node1"))
    found = consulted(host("node0", waits_in(0), waits_in(1)), away)
    assert found.diagnosis.verdict.startswith("2 of 4 ranks wait")
    assert found.diagnosis.missing == ["node1 did not answer: no route"]
    with pytest.raises(HostsFailed):
        consulted(away)


def test_a_rank_that_its_host_does_not_see_any_more_has_ended() -> None:
    found = consulted(host("node0", waits_in(0), waits_in(1)), host("node1", waits_in(3)))
    assert found.diagnosis.verdict == WAIT + "rank 2 on node1 has ended"
    assert suspects(found) == [2]


def test_ranks_that_have_not_started_yet_have_not_ended() -> None:
    found = consulted(host("node0", waits_in(0, seconds=1.0)), host("node1", state="starting"))
    assert "ended" not in found.diagnosis.verdict
    assert suspects(found) == []


def test_the_last_looks_of_a_node_that_has_ended_are_no_looks_of_now() -> None:
    over = host("node1", behind(2), waits_in(3), state="succeeded", ended=True)
    found = consulted(host("node0", waits_in(0), waits_in(1)), over)
    text = "2 of 4 ranks wait in broadcast #6 (train.py:88 in step) for 40 s; ranks 2-3 have ended"
    assert found.diagnosis.verdict == text
    assert suspects(found) == [2, 3]


def test_a_dump_says_where_a_rank_was_that_has_ended() -> None:
    cause = {"host": "node0", "rank": 0, "reason": "exited", "message": "exit code 1", "time": TIME}
    over: dict[str, Any] = {"state": "failed", "ended": True, "cause": cause}
    gone: dict[str, Any] = {"state": "ended", "stack": None}
    looks = waits_in(0, **gone, dumped=True), waits_in(1, **gone)
    found = consulted(host("node0", *looks, **over), host("node1", **over))
    assert found.diagnosis.groups == [{"ranks": [0], "where": "broadcast #6"}, {"ranks": [1], "where": "ended"}]


def test_a_dump_of_a_node_that_has_ended_before_the_others_holds_up_nobody() -> None:
    over = host("node1", waits_in(2, dumped=True), waits_in(3, dumped=True), state="failed", ended=True)
    found = consulted(host("node0", waits_in(0), waits_in(1)), over)
    assert found.diagnosis.verdict.startswith("2 of 4 ranks wait in broadcast #6")


@pytest.mark.parametrize("rank", [2, None])
def test_after_the_end_the_cause_of_the_run_counts(rank: int | None) -> None:
    cause = {"host": "node1", "rank": rank, "reason": "exited", "message": "exit code\n 1", "time": TIME}
    over: dict[str, Any] = {"state": "failed", "ended": True, "cause": cause}
    found = consulted(host("node0", waits_in(0), **over), host("node1", behind(2), **over))
    who = "rank 2 on node1" if rank is not None else "node1"
    assert found.diagnosis.verdict == f"the run is over (failed): {who}: exit code 1"
    assert suspects(found) == ([] if rank is None else [2])
    assert (found.ended, found.state) == (True, "failed")


def test_a_run_that_has_succeeded_has_no_suspect() -> None:
    over: dict[str, Any] = {"state": "succeeded", "ended": True}
    found = consulted(host("node0", **over), host("node1", **over))
    assert (found.diagnosis.verdict, suspects(found)) == ("the run is over: succeeded", [])
