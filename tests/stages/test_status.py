"""Which run a name means, and which runs a kill has to choose from."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl.errors import HostsFailed, NoSuchJob, Unreachable, UsageError
from ddpctl.files.records import run_dir, save_run
from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.merge import merge_runs
from ddpctl.spec.record import NodeReport
from ddpctl.stages.status import all_runs, find_run, live_runs, live_runs_of, read_end, read_run
from ddpctl_worker.wire.contract import begins
from tests.transport.dry import Asked, DryFleet, DryTransport
from tests.values import value_of


@pytest.fixture(autouse=True)
def _home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def part(run: str, host: str, state: str, hosts: list[str]) -> dict[str, Any]:
    names = {"run": run, "job": "train", "cluster": "lab", "host": host}
    return {**names, "node_rank": 0, "state": state, "record": {"hosts": hosts, "project": "exp"}}


def fleet(**parts: list[tuple[str, str, list[str]]]) -> DryFleet:
    """Hosts, each with (run, state, hosts of the run)."""

    def answer(asked: Asked) -> dict[str, Any]:
        told = [part(run, asked.host, state, hosts) for run, state, hosts in parts[asked.host]]
        word = asked.args["job"]
        return {"runs": [one for one in told if word in (one["run"], one["job"]) or begins(one["run"], word)]}

    return DryFleet(DryTransport(host, {"status": answer}) for host in parts)


def test_a_name_means_its_newest_run_and_an_id_that_run() -> None:
    hosts = fleet(a=[("1", "running", ["a"]), ("2", "running", ["a"])], b=[])
    assert find_run(hosts, "train").run == "2"
    assert find_run(hosts, "1").run == "1"
    with pytest.raises(NoSuchJob):
        find_run(hosts, "other")


OLD, NEW = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"


def test_the_beginning_of_an_id_means_its_run_where_it_fits_no_other() -> None:
    hosts = fleet(a=[(OLD, "succeeded", ["a", "b"])], b=[(OLD, "succeeded", ["a", "b"]), (NEW, "running", ["b"])])
    assert find_run(hosts, OLD[:8]).run == OLD
    assert [run.run for run in live_runs(hosts, NEW[:-1])] == [NEW]
    with pytest.raises(UsageError, match=f"2026 is the beginning of 2 run ids: {NEW}, {OLD}"):
        find_run(hosts, "2026")
    with pytest.raises(NoSuchJob):
        find_run(hosts, "202")  # as git: too short to be meant


def test_a_name_wins_over_the_beginning_of_an_id() -> None:
    named = {"runs": [part(OLD, "a", "running", ["a"]) | {"job": "2026"}]}
    begun = {"runs": [part(NEW, "b", "running", ["b"])]}
    hosts = DryFleet([DryTransport("a", {"status": named}), DryTransport("b", {"status": begun})])
    assert find_run(hosts, "2026").run == OLD


def test_a_run_is_asked_for_again_only_where_it_is() -> None:
    hosts = fleet(a=[(OLD, "running", ["a"])], b=[])
    run = find_run(hosts, OLD)
    asked = len(hosts.table["b"].calls)
    assert read_run(hosts, run).run == OLD
    assert len(hosts.table["b"].calls) == asked


def test_live_are_the_runs_that_something_may_be_left_of_in_this_fleet() -> None:
    hosts = fleet(
        a=[("1", "running", ["a"]), ("2", "lost", ["a", "away"]), ("3", "succeeded", ["a", "b"])],
        b=[("3", "running", ["a", "b"]), ("4", "failed", ["b"])],
    )
    assert [run.run for run in live_runs(hosts, "train")] == ["1", "3"]
    assert [run.run for run in live_runs(hosts, "4")] == ["4"]
    assert [run.run for run in live_runs(fleet(a=[("1", "killed", ["a"]), ("2", "failed", ["a"])]), "train")] == ["2"]


def test_a_host_that_did_not_answer_may_have_a_newer_run_of_that_name() -> None:
    heard = fleet(a=[(OLD, "succeeded", ["a", "b"])])
    silent = {host: DryTransport(host, unreachable=Unreachable("no route", host=host)) for host in ("b", "c")}
    hosts = DryFleet([*heard.table.values(), *silent.values()])
    assert find_run(hosts, "train").silent_hosts == ("c",)  # of b its part says so
    assert find_run(hosts, OLD[:12]).silent_hosts == ("c",)
    assert live_runs(hosts, "train")[0].silent_hosts == ("c",)
    assert find_run(hosts, OLD).silent_hosts == ()
    assert find_run(heard, "train").silent_hosts == ()


def test_an_end_is_remembered_unless_its_record_is_damaged() -> None:
    both = fleet(a=[(OLD, "killed", ["a", "b"])], b=[(OLD, "killed", ["a", "b"])])
    assert find_run(both, OLD).verdict.state == "killed"
    silent = DryFleet([both.table["a"], DryTransport("b", unreachable=Unreachable("no route", host="b"))])
    assert find_run(silent, OLD).verdict.state == "killed"
    for damaged in ('{"state": "killed", "cause": "x"}', '{"state": "fine"}', "{}", "{"):
        (run_dir(OLD) / "end.json").write_text(damaged)
        assert find_run(silent, OLD).verdict.state == "stopping"


def test_why_a_host_is_out_of_reach_is_told_beside_its_run() -> None:
    dead = DryTransport("b", unreachable=Unreachable("no answer"))
    told = DryTransport("a", {"status": {"runs": [part("1", "a", "running", ["a", "b"])]}})
    assert [node.note for node in find_run(DryFleet([told, dead]), "train").nodes] == [None, "no answer"]
    with pytest.raises(HostsFailed):
        find_run(DryFleet([dead]), "train")


def test_no_record_leaves_out_a_host_that_tells_of_the_run() -> None:
    """A spoilt or forged record would hide a host from a kill."""
    run = find_run(fleet(a=[("1", "running", ["a"])], b=[("1", "running", ["a", "b"])]), "train")
    assert run.hosts == ("a", "b")


OF = Inventory(cluster="lab", project="exp", hosts=(Host(name="a", address="a"),))


def of_project(project: str, run: str, state: str = "running", job: str = "train") -> dict[str, Any]:
    origin = {"account": "ann", "machine": "laptop", "folder": f"/home/ann/{project}", "inode": 1}
    one = part(run, "a", state, ["a"])
    return {**one, "job": job, "record": {**one["record"], "project": project, "origin": origin}}


def test_a_name_means_a_job_of_its_own_project() -> None:
    hosts = DryFleet([DryTransport("a", {"status": {"runs": [of_project("exp", "r1"), of_project("other", "r2")]}})])
    assert find_run(hosts, "train", OF).run == "r1"
    assert [run.run for run in live_runs(hosts, "train", OF)] == ["r1"]
    assert [run.run for run in live_runs(hosts, "train")] == ["r1", "r2"]
    live, errors = live_runs_of(hosts, OF.job_id("train"))
    assert ([run.run for run in live], errors) == (["r1"], {})
    with pytest.raises(UsageError, match="train is a job of several projects: run r2 of project other, started from"):
        find_run(hosts, "train")


def test_a_run_id_needs_no_project_and_of_a_name_of_others_it_is_said_whose_it_is() -> None:
    hosts = DryFleet([DryTransport("a", {"status": {"runs": [of_project("other", "r2")]}})])
    assert find_run(hosts, "r2", OF).project == "other"
    with pytest.raises(NoSuchJob) as refused:
        find_run(hosts, "train", OF)
    assert refused.value.message == (
        "project exp on cluster lab has no job 'train'; others have: "
        "run r2 of project other, started from ann@laptop:/home/ann/other"
    )
    assert refused.value.hint == "name the run by its id; kill, rm and restart also take --any-project"


def test_without_a_name_the_only_live_run_of_the_project_is_meant() -> None:
    told = [of_project("exp", "r1", "failed"), of_project("exp", "r2", job="eval"), of_project("other", "r3")]
    silent = DryTransport("b", unreachable=Unreachable("no route", host="b"))
    found = find_run(DryFleet([DryTransport("a", {"status": {"runs": told}}), silent]), None, OF)
    assert (found.run, found.silent_hosts) == ("r2", ("b",))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([of_project("other", "r3")], "no run is named, and no run is live"),
        ([of_project("exp", "r1", "failed")], "no run is named, and no run is live; ended: train (r1, failed)"),
        (
            [of_project("exp", "r1"), of_project("exp", "r2"), of_project("exp", "r3", "failed", job="eval")],
            "no run is named, and 2 runs are live: train (r1, running), train (r2, running)",
        ),
    ],
)
def test_without_a_name_and_with_no_or_several_live_runs_the_names_are_listed(
    told: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        find_run(DryFleet([DryTransport("a", {"status": {"runs": told}})]), None, OF)
    assert refused.value.message == said


def test_a_silent_host_may_have_the_live_run_that_is_not_named() -> None:
    ended = DryTransport("a", {"status": {"runs": [of_project("exp", "r1", "failed")]}})
    silent = DryTransport("b", unreachable=Unreachable("no route", host="b"))
    with pytest.raises(HostsFailed, match="no run is live on the hosts that answered, and 1 host did not answer"):
        find_run(DryFleet([ended, silent]), None, OF)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("trian", "did you mean train? `ddpctl ps --all` lists every run"),
        ("evall-lr2", "did you mean eval-lr02? `ddpctl ps --all` lists every run"),
        ("train", "`ddpctl ps --all` lists every run"),
        ("other-9", "`ddpctl ps --all` lists every run"),
    ],
)
def test_a_name_that_no_run_has_gets_the_most_similar_name(typed: str, hint: str) -> None:
    jobs = {"train": JobSpec(name="train", script="train.py")}
    of = OF.model_copy(update={"file": "/home/ann/exp/inventory.yaml", "jobs": jobs})
    save_run("eval-lr02", OLD, {"inventory": of.file})
    save_run("other-99", NEW, {"inventory": "/home/ann/other/inventory.yaml"})
    with pytest.raises(NoSuchJob) as refused:
        find_run(DryFleet([DryTransport("a", {"status": {"runs": []}})]), typed, of)
    assert refused.value.hint == hint


def test_the_newest_run_of_each_projects_job_is_current() -> None:
    told = [of_project("exp", "r1", "failed"), of_project("exp", "r2", "failed"), of_project("other", "r0", "failed")]
    runs, _ = all_runs(DryFleet([DryTransport("a", {"status": {"runs": told}})]))
    assert [run.run for run in runs] == ["r0", "r2"]


def test_a_connection_that_breaks_at_the_end_of_a_run_is_tried_again() -> None:
    pauses: list[float] = []

    def answer(asked: Asked) -> dict[str, Any]:
        if not pauses:
            raise Unreachable("the connection broke", host="b")
        return {"runs": [part(OLD, "b", "succeeded", ["a", "b"])]}

    a = DryTransport("a", {"status": {"runs": [part(OLD, "a", "succeeded", ["a", "b"])]}})
    hosts = DryFleet([a, DryTransport("b", {"status": answer})])
    run = merge_runs({"a": [value_of(NodeReport, part(OLD, "a", "running", ["a", "b"]))]})[0]
    assert read_end(hosts, run, sleep=pauses.append).verdict.state == "succeeded"
    assert len(pauses) == 1


def test_a_host_that_stays_silent_at_the_end_is_an_error_and_no_failure_of_the_job() -> None:
    def answer(asked: Asked) -> dict[str, Any]:
        raise Unreachable("no route", host="b")

    a = DryTransport("a", {"status": {"runs": [part(OLD, "a", "succeeded", ["a", "b"])]}})
    hosts = DryFleet([a, DryTransport("b", {"status": answer})])
    run = merge_runs({"a": [value_of(NodeReport, part(OLD, "a", "running", ["a", "b"]))]})[0]
    clock = [0.0]
    with pytest.raises(HostsFailed) as caught:
        read_end(hosts, run, sleep=lambda seconds: clock.append(clock[-1] + seconds), now=lambda: clock[-1])
    assert caught.value.exit_code == 4
    assert list(caught.value.errors) == ["b"]
