"""Checkpoints that hosts report: ``ddpctl`` lists them, fetches them and checks their hashes, or sets them aside."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpctl.errors import DdpctlError, HostsFailed, NoSuchJob, Unreachable, UsageError
from ddpctl.render.checkpoints import checkpoints_view
from ddpctl.render.console import make_console
from ddpctl.spec.event import Note
from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Inventory
from ddpctl.stages.checkpoints import fetch_checkpoint, list_checkpoints, set_aside
from ddpctl.transport.base import Frame
from tests.transport.dry import Asked, DryFleet, DryTransport, Stream

DOWN = Unreachable("no route", host="c")
OF = Inventory(cluster="lab", project="exp", hosts=(Host(name="a", address="a"),))


def manifest(
    host: str, files: Mapping[str, bytes], *, entry: str = "step_1", at: str = "10:00", references: Any = None
) -> dict[str, Any]:
    told = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "mtime_ns": 1, "save": 1}
        for name, data in files.items()
    }
    size = sum(len(data) for data in files.values())
    return {
        "schema": 1,
        "entry": entry,
        "host": host,
        "step": 1,
        "time": f"2026-01-02T{at}:00+00:00",
        "size": size,
        "files": told,
        "references": references,
        "version": hashlib.md5(repr(sorted(told.items())).encode()).hexdigest(),
        "serial": 1,
        "run": "r1",
        "attempt": 1,
        "clock": host,
    }


RANK_0 = {"__0_0.distcp": b"first", ".metadata": b"index"}
RANK_1 = {"__1_0.distcp": b"second"}
REFERENCES = {"__0_0.distcp": 5, "__1_0.distcp": 6}
PARTS = {"a": manifest("a", RANK_0, references=REFERENCES), "b": manifest("b", RANK_1)}
CONTENT = {"a": RANK_0, "b": RANK_1}


def run_of(host: str, state: str) -> dict[str, Any]:
    return {
        "run": "r1",
        "job": "train",
        "cluster": "lab",
        "host": host,
        "node_rank": 0,
        "state": state,
        "record": {"hosts": [host], "project": "exp"},
    }


def host(
    name: str,
    *writers: str,
    unknown: list[dict[str, Any]] | None = None,
    damaged: tuple[str, ...] = (),
    runs: list[dict[str, Any]] | None = None,
    more: Sequence[str] = (),
) -> DryTransport:
    """Return a host with the parts of these writers; ``damaged`` files come with wrong bytes, ``more`` unasked."""

    def send(asked: Asked) -> Stream:
        frames = []
        for path in asked.args["paths"]:
            data = CONTENT[asked.args["writer"]][path]
            data = data.upper() if path in damaged else data
            frames += [Frame({"file": {"path": path, "size": len(data)}}), Frame({"chunk": True}, data)]
        for path in more:
            frames += [Frame({"file": {"path": path, "size": 4}}), Frame({"chunk": True}, b"evil")]
        return Stream(frames, {})

    held = {"manifests": [PARTS[writer] for writer in writers], "unknown": unknown or []}
    answers: dict[str, Any] = {"status": {"runs": runs or []}, "checkpoints": held, "fetch_checkpoint": send}
    answers["set_aside"] = {"name": "train@20260102T030405Z" if writers else None}
    return DryTransport(name, answers)


def down(name: str) -> DryTransport:
    return DryTransport(name, {}, unreachable=Unreachable("no route", host=name))


def shown(fleet: DryFleet) -> str:
    import io

    out = io.StringIO()
    make_console(out).print(checkpoints_view(list_checkpoints(fleet, "train", OF)))
    return out.getvalue()


def test_parts_of_all_hosts_are_one_checkpoint() -> None:
    found = list_checkpoints(DryFleet([host("a", "a"), host("b", "b", "a")]), "train", OF)
    assert found.to_json() == {
        "schema": 1,
        "job": "train",
        "project": "exp",
        "checkpoints": [
            {
                "name": "step_1",
                "step": 1,
                "time": "2026-01-02T10:00:00+00:00",
                "size": 16,
                "hosts": ["a", "b"],
                "complete": True,
                "missing": [],
            }
        ],
        "lag": None,
    }


def of_two_hosts(name: str, replicas: int) -> list[dict[str, Any]]:
    """Return the host's part of a run. With ``replicas`` the hosts copy each other's checkpoints."""
    one = run_of(name, "running")
    hosts, rank = ["a", "b"], 0 if name == "a" else 1
    return [
        {
            **one,
            "node_rank": rank,
            "record": {
                "hosts": hosts,
                "project": "exp",
                "checkpoint": {"replicas": replicas, "signal": "SIGUSR1", "timeout": 120.0},
            },
        }
    ]


def test_a_checkpoint_without_a_copy_is_named() -> None:
    def seen(of_b: tuple[str, ...], replicas: int = 1) -> str:
        hosts = [
            host("a", "a", "b", runs=of_two_hosts("a", replicas)),
            host("b", *of_b, runs=of_two_hosts("b", replicas)),
        ]
        return shown(DryFleet(hosts))

    assert "step_1: no other host has a copy." in seen(())
    assert "no other host" not in seen(("a", "b"))
    assert "no other host" not in seen((), replicas=0), "none was asked for"


def test_what_a_host_that_is_down_had_is_missing() -> None:
    found = list_checkpoints(DryFleet([host("a", "a"), down("b")]), "train", OF)
    (one,) = found.to_json()["checkpoints"]
    assert (one["complete"], one["missing"]) == (False, ["__1_0.distcp"])
    assert list(found.errors) == ["b"]
    assert found.resumed == ()


def test_what_has_no_manifest_is_told_and_never_complete() -> None:
    torn = {"entry": "step_2", "host": "a", "step": 2, "time": "2026-01-02T11:00:00+00:00", "size": 3}
    incoming = {**torn, "entry": "step_3"}
    found = list_checkpoints(
        DryFleet([host("a", "a", "b", unknown=[torn]), host("b", unknown=[incoming])]), "train", OF
    )
    rows = [(one["name"], one["complete"], one["hosts"]) for one in found.to_json()["checkpoints"]]
    assert rows == [("step_2", False, ["a"]), ("step_1", True, ["a"])], "a copy on its way is nobody's checkpoint"
    assert [one.entry for one in found.resumed] == ["step_1"]


def test_a_run_stands_for_its_job() -> None:
    hosts = [host("a", "a", runs=[run_of("a", "succeeded")]), host("b", "b")]
    assert list_checkpoints(DryFleet(hosts), "r1", OF).job == "train"
    assert [asked.args["job_id"] for one in hosts for asked in one.calls if asked.verb == "checkpoints"] == [
        "lab/exp/train"
    ] * 2


def runs_of(*ids: str) -> list[dict[str, Any]]:
    return [{**run_of("a", "succeeded"), "run": run} for run in ids]


def test_the_beginning_of_a_runs_id_stands_for_its_job() -> None:
    hosts = [host("a", "a", runs=runs_of("20260102-aaaa")), host("b", "b")]
    assert list_checkpoints(DryFleet(hosts), "20260102", OF).job == "train"


def test_the_beginning_of_several_ids_is_refused_unless_a_job_has_that_name() -> None:
    runs = runs_of("20260102-aaaa", "20260102-bbbb")
    with pytest.raises(UsageError, match="20260102-aaaa"):
        list_checkpoints(DryFleet([host("a", runs=runs)]), "20260102", OF)
    assert list_checkpoints(DryFleet([host("a", "a", runs=runs)]), "20260102", OF).job == "20260102"


def test_a_run_without_checkpoints_has_none() -> None:
    fleet = DryFleet([host("a", runs=[run_of("a", "succeeded")])])
    assert list_checkpoints(fleet, "train", OF).to_json()["checkpoints"] == []
    assert "train has no checkpoints" in shown(fleet)


@pytest.mark.parametrize("name", ["train", "../x", ""])
def test_what_nobody_knows_is_no_job(name: str) -> None:
    with pytest.raises(NoSuchJob):
        list_checkpoints(DryFleet([host("a")]), name, OF)


def test_hosts_that_are_down_may_know_it() -> None:
    with pytest.raises(HostsFailed, match="no host that answered has a checkpoint of 'train', and 1 host"):
        list_checkpoints(DryFleet([host("a"), down("b")]), "train", OF)


def test_a_person_sees_what_is_missing() -> None:
    text = shown(DryFleet([host("a", "a")]))
    assert "step_1  1     10 B" in text
    assert "not complete" in text
    assert "step_1: missing __1_0.distcp" in text


BAD: list[Callable[[dict[str, Any]], object]] = [
    lambda one: one.update(entry="../x"),
    lambda one: one.update(host="a/b"),
    lambda one: one.update(time="now"),
    lambda one: one["files"].update({"../x": one["files"]["__1_0.distcp"]}),
    lambda one: one["files"].update({"/x": one["files"]["__1_0.distcp"]}),
    lambda one: one["files"]["__1_0.distcp"].update(sha256="x"),
    lambda one: one["files"]["__1_0.distcp"].update(size=-1),
    lambda one: one.update(references={"../x": 1}),
    lambda one: one.update(files={}),
]


@pytest.mark.parametrize("change", BAD)
def test_a_hostile_manifest_is_that_hosts_error(change: Callable[[dict[str, Any]], object]) -> None:
    one = manifest("b", RANK_1)
    change(one)
    bad = DryTransport("b", {"status": {"runs": []}, "checkpoints": {"manifests": [one], "unknown": []}})
    found = list_checkpoints(DryFleet([host("a", "a"), bad]), "train", OF)
    assert list(found.errors) == ["b"]


def fetched(tmp_path: Path, *hosts: DryTransport) -> int:
    fleet = DryFleet(hosts)
    (newest,) = list_checkpoints(fleet, "train", OF).resumed
    return fetch_checkpoint(OF.job_id("train"), newest, tmp_path / "to", fleet, lambda event: None)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WHOLE = {f"step_1/{name}": data for name, data in (RANK_0 | RANK_1).items()}


def test_all_parts_come_from_the_hosts_that_have_them(tmp_path: Path) -> None:
    assert fetched(tmp_path, host("a", "a"), host("b", "b")) == 3
    assert content(tmp_path / "to") == WHOLE


def test_a_damaged_file_comes_from_the_next_host(tmp_path: Path) -> None:
    assert fetched(tmp_path, host("a", "a", "b"), host("b", "b", damaged=("__1_0.distcp",))) == 3
    assert content(tmp_path / "to") == WHOLE


def test_a_host_that_fails_is_not_the_only_one(tmp_path: Path) -> None:
    gone = DryTransport("b", {**host("b", "b")._answers, "fetch_checkpoint": DdpctlError("it is gone", host="b")})
    assert fetched(tmp_path, host("a", "a", "b"), gone) == 3
    assert content(tmp_path / "to") == WHOLE


def test_a_host_cannot_send_a_file_of_another_host(tmp_path: Path) -> None:
    """Nor a second version of its own file, after the first was sent."""
    evil = host("b", "b", more=(".metadata",))
    with pytest.raises(HostsFailed, match="nothing was written") as failed:
        fetched(tmp_path, host("a", "a"), evil)
    assert "a file that was not asked for" in str(failed.value)
    assert fetched(tmp_path, host("a", "a", "b"), evil) == 3
    assert content(tmp_path / "to") == WHOLE
    assert fetched(tmp_path, host("a", "a", "b"), host("b", "b", more=("__1_0.distcp",))) == 3
    assert content(tmp_path / "to") == WHOLE


@pytest.mark.parametrize("damaged", [("__1_0.distcp",), (".metadata", "__0_0.distcp", "__1_0.distcp")])
def test_nothing_appears_unless_all_of_it_is_right(tmp_path: Path, damaged: tuple[str, ...]) -> None:
    with pytest.raises(HostsFailed, match="nothing was written") as failed:
        fetched(tmp_path, host("a", "a", damaged=damaged), host("b", "b", damaged=damaged))
    assert "other bytes than its hash says" in str(failed.value)
    assert content(tmp_path / "to") == {}


EARLIER = {"step_1/__0_0.distcp": b"old", "step_1/__2_0.distcp": b"shard", "step_1/.metadata": b"old index"}


def lay(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_a_later_save_leaves_no_file_of_an_earlier_copy(tmp_path: Path) -> None:
    lay(tmp_path / "to", EARLIER | {"step_0/a": b"another entry"})
    fetched(tmp_path, host("a", "a"), host("b", "b"))
    assert content(tmp_path / "to") == WHOLE | {"step_0/a": b"another entry"}


def test_a_folder_takes_the_place_of_a_file(tmp_path: Path) -> None:
    lay(tmp_path / "to", {"step_1": b"a file"})
    fetched(tmp_path, host("a", "a"), host("b", "b"))
    assert content(tmp_path / "to") == WHOLE


@pytest.mark.parametrize("error", [KeyboardInterrupt, PermissionError])
@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("step", range(1, 9))
def test_an_interruption_leaves_the_old_entry_or_the_new_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], done: bool, step: int
) -> None:
    """``step``: the renaming before which, or (``done``) after which, the interruption comes."""
    lay(tmp_path / "to", EARLIER)
    renamings = 0

    def interrupted(how: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def call(path: Path, target: Path) -> Path:
            nonlocal renamings
            renamings += 1
            if renamings == step and not done:
                raise error
            moved = how(path, target)
            if renamings == step:
                raise error
            return moved

        return call

    monkeypatch.setattr(Path, "rename", interrupted(Path.rename))
    monkeypatch.setattr(Path, "replace", interrupted(Path.replace))
    with contextlib.suppress(KeyboardInterrupt, DdpctlError):
        fetched(tmp_path, host("a", "a"), host("b", "b"))
    there = {name: data for name, data in content(tmp_path / "to").items() if name.startswith("step_1/")}
    assert there in (EARLIER, WHOLE)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("in the way")
    with pytest.raises((DdpctlError, HostsFailed), match="on this machine"):
        fetched(tmp_path, host("a", "a"), host("b", "b"))


def test_checkpoints_are_set_aside_on_every_host() -> None:
    told: list[Any] = []
    hosts = [host("a", "a"), host("b")]
    name = set_aside(OF.job_id("train"), ["a", "b"], "20260102T030405Z", DryFleet(hosts), told.append)
    assert name == "train@20260102T030405Z"
    assert told == [
        Note("earlier checkpoints of train are now in checkpoints/lab/exp/train@20260102T030405Z on 2 hosts")
    ]
    assert [asked.args for one in hosts for asked in one.calls if asked.verb == "set_aside"] == [
        {"job_id": "lab/exp/train", "when": "20260102T030405Z"}
    ] * 2


def test_those_of_a_live_run_are_not_set_aside() -> None:
    one = host("a", "a", runs=[run_of("a", "running")])
    with pytest.raises(UsageError, match="its run r1 is running"):
        set_aside(OF.job_id("train"), ["a"], "20260102T030405Z", DryFleet([one]), lambda event: None)
    assert [asked.verb for asked in one.calls] == ["status"]


def test_a_host_that_is_down_is_why_nothing_is_started() -> None:
    with pytest.raises(HostsFailed, match="nothing was started"):
        set_aside(
            OF.job_id("train"),
            ["a", "b"],
            "20260102T030405Z",
            DryFleet([host("a", "a"), down("b")]),
            lambda event: None,
        )
