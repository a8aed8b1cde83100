"""The checkpoints of earlier runs onto every host before a start: real workers on folders of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpctl.environment.spread import Addresses
from ddpctl.errors import DdpctlError, RemoteError, Unreachable, UsageError
from ddpctl.spec.event import Note, StageEnded, StageStarted
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import RunIdentity
from ddpctl.spec.resuming import CheckpointRow, Holdings, Start
from ddpctl.stages.launch import Launch
from ddpctl.stages.restore import ask_held, refuse_others, restore
from ddpctl.transport.base import Fleet, FleetOutcome
from ddpctl.transport.local import LocalTransport
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.starts import note_start
from ddpctl_worker.machine import proc
from ddpctl_worker.record.paths import job_id, run_paths
from ddpctl_worker.record.status import live_runs
from tests.environment.support import Heard, fleet_of, local_inventory
from tests.transport.dry import DryTransport
from tests.worker.checkpoint.test_metadata import index
from tests.worker.checkpoint.test_whole import safetensors
from tests.worker.checkpoints import NOW, Disk
from tests.worker.node import Node, eventually
from tests.worker.programs import SLEEP

BIG = bytes(range(256)) * 4000
HERE = {f"n{number}": ("127.0.0.1",) for number in range(3)}


class Site:
    """Some hosts with their disks."""

    def __init__(self, folder: Path, hosts: int = 3, taking_part: int | None = None) -> None:
        inventory = local_inventory(folder, hosts).model_copy(update={"cluster": "lab", "project": "exp"})
        identity = RunIdentity("r", Origin("me", "here", "/home/me", 1), "")
        job = JobSpec(name="job", script="x.py")
        self.launch = Launch(inventory, job, inventory.hosts[: taking_part or hosts], identity=identity)
        self.disks = [Disk(folder / host, host) for host in inventory.names]
        self.heard = Heard()
        self.down: set[str] = set()

    def ask(self) -> FleetOutcome[Holdings]:
        with self._fleet() as fleet:
            return ask_held(self.launch, fleet, fleet.hosts)

    def restore(self, held: FleetOutcome[Holdings] | None = None, *, wait: bool = False) -> Mapping[str, DdpctlError]:
        held = held or self.ask()
        with self._fleet() as fleet:
            return restore(self.launch, fleet, self.heard, Addresses(HERE), held, wait=wait)

    @contextlib.contextmanager
    def _fleet(self) -> Iterator[Fleet]:
        with fleet_of(self.launch.inventory) as fleet:
            for host in self.down:
                fleet._transports[host] = DryTransport(host, unreachable=Unreachable("no route", host=host))
            yield fleet

    def warnings(self) -> list[tuple[str | None, str]]:
        return [(one.host, one.message) for one in self._notes("warning")]

    def lines(self) -> list[str]:
        """Return the messages to the user that are no warnings."""
        return [one.message for one in self._notes("info")]

    def _notes(self, level: str) -> list[Note]:
        return [one for one in self.heard if isinstance(one, Note) and one.level == level]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*args: object, **keys: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr(LocalTransport, "call", call)


@pytest.mark.slow
def test_what_one_host_has_comes_to_all_and_then_nobody_is_asked(site: Site, request: pytest.FixtureRequest) -> None:
    first, second, third = site.disks
    for disk in (first, second):
        run: Any = {"run": "r", "origin": None}
        note_start(str(disk.own), run)
    first.save("step_2", {"model": BIG, "rng_0": b"0"}, age=50)
    second.save("step_2", {"rng_1": b"1"}, age=50)
    first.save("step_1", {"model": b"older"}, age=90)
    assert site.restore() == {}
    for disk in site.disks:
        assert disk.content("step_2") == {"model": BIG, "rng_0": b"0", "rng_1": b"1"}
    assert third.content("step_1") is None
    assert isinstance(site.heard[0], StageStarted), "before a host hashes what has no manifest"
    (ended,) = [event for event in site.heard if isinstance(event, StageEnded)]
    assert ended.ok
    assert ended.note == f"step_2: {2 * len(BIG) + 4} bytes from host to host"
    (line,) = site.lines()
    said = r"resumes from step_2 \(step 2, saved \d+ s ago by run r\); `ddpctl up --fresh` starts without it"
    assert re.fullmatch(said, line), line
    held = site.ask()
    request.getfixturevalue("no_call")
    assert site.restore(held) == {}


@pytest.mark.slow
@pytest.mark.parametrize("queued", [False, True], ids=["live", "queued"])
def test_a_live_run_keeps_what_it_writes_and_a_run_in_line_writes_nothing(
    site: Site, tmp_path: Path, request: pytest.FixtureRequest, queued: bool
) -> None:
    first, second, third = site.disks
    first.save("epoch_1.pt", {"": BIG}, age=50)
    first.save("snapshot.pt", {"": b"complete"}, age=50)
    first.save("best.pt", {"": b"newer"}, age=50)
    second.save("best.pt", {"": b"older"}, age=90)
    for name in ("epoch_2.pt", "snapshot.pt"):
        (second.own / name).write_bytes(b"half of a save")
    (tmp_path / "scratch").mkdir()
    node = Node(second.base, tmp_path / "scratch", "n1")
    request.addfinalizer(node.clean_up)
    how: dict[str, Any] = {"line": {"address": "127.0.0.1"}, "gang_key": "00"} if queued else {}
    run = node.start(SLEEP, **how)
    assert site.restore(wait=True) == {}
    assert (second.content("epoch_1.pt"), second.content("best.pt")) == ({"": BIG}, {"": b"newer"})
    assert third.content("snapshot.pt") == {"": b"complete"}
    if not queued:
        for name in ("epoch_2.pt", "snapshot.pt"):
            assert (second.own / name).read_bytes() == b"half of a save"
        why = "stays as it is: a live run of the job may be writing it"
        assert site.warnings() == [("n1", f"{name} {why}") for name in ("epoch_2.pt", "snapshot.pt")]
        errors = site.restore()
        assert {host: error.message for host, error in errors.items()} == {"n1": f"epoch_2.pt, snapshot.pt {why}"}
        node.call("stop", run=run, grace=0, by="me")
        assert site.restore() == {}
    assert second.content("snapshot.pt") == {"": b"complete"}
    assert sorted(path.name.split(".aside-")[0] for path in second.own.glob(".*.aside-*")) == [
        ".epoch_2.pt",
        ".snapshot.pt",
    ]
    if queued:
        os.kill(node.pid(run, "starter"), signal.SIGKILL)


@pytest.mark.slow
def test_a_live_run_keeps_the_version_that_its_keeper_judges(
    site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The script has replaced that version already, so only its pin is left."""
    first, second, _ = site.disks
    first.save("epoch_1.pt", {"": BIG}, age=50)
    (tmp_path / "scratch").mkdir()
    node = Node(second.base, tmp_path / "scratch", "n1")
    request.addfinalizer(node.clean_up)
    node.start(SLEEP)
    keeper = Keeper(str(second.own), "n1", since=time.time() - 5.0)
    (second.own / "state.bin").write_bytes(b"first")
    assert keeper.look() == []
    (second.own / "new.tmp").write_bytes(b"second one")
    (second.own / "new.tmp").replace(second.own / "state.bin")
    assert site.restore(wait=True) == {}
    assert site.warnings() == []
    written = eventually(keeper.look, "the version is hashed")
    assert [(one["entry"], one["size"]) for one in written] == [("state.bin", len(b"first"))]


@pytest.mark.slow
def test_a_file_from_before_a_power_cut_counts_although_nobody_had_hashed_it(site: Site) -> None:
    begin(str(site.disks[0].own), NOW)
    archive = site.disks[0].own / "ckpt-3"
    shutil.make_archive(str(archive), "zip", site.disks[0].own, ".")  # as torch.save writes: it says where it ends
    archive.with_suffix(".zip").rename(archive.with_suffix(".pt"))
    site.disks[1].save("ckpt-2.pt", {"": b"older"}, age=500)
    assert site.restore() == {}
    assert site.disks[2].content("ckpt-3.pt") == {"": archive.with_suffix(".pt").read_bytes()}


@pytest.mark.slow
@pytest.mark.parametrize("record", ["another machine", "damaged"])
def test_a_run_whose_record_never_ends_keeps_nothing_back(site: Site, record: str) -> None:
    """A container that was created again, or a power cut that emptied state.json."""
    first = site.disks[0]
    paths = run_paths(str(first.base), "20260101T000000Z-aaaaaa", "n0")
    Path(paths.node).mkdir(parents=True)
    made = {"run": "20260101T000000Z-aaaaaa", "job": "job", "host": "n0", "cluster": "lab", "project": "exp"}
    Path(paths.run).write_text(json.dumps(made))
    state = {"boot": "earlier", "machine": {**proc.machine(), "boot": "earlier", "name": "pod-7f"}, "state": "running"}
    Path(paths.state).write_text(json.dumps(state) if record == "another machine" else "")
    os.utime(paths.state, (1e9, 1e9))
    assert live_runs(str(first.base), "n0", job_id(made)) == [made["run"]]
    begin(str(first.own), NOW)
    (first.own / "model.safetensors").write_bytes(safetensors())
    (first.own / "step_9.pt").write_bytes(b"PK half of a save")
    site.disks[1].save("step_8.pt", {"": b"older"}, age=500)
    assert site.restore() == {}
    assert site.disks[2].content("model.safetensors") == {"": safetensors()}
    assert not (first.own / "step_9.pt").exists()


@pytest.mark.slow
def test_a_host_alone_gets_the_copy_that_lies_on_its_own_disk(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=1)
    (only,) = site.disks
    lost = Disk(only.base, "lost")  # a host that has left the run: its checkpoint has a copy here
    lost.save("step_2.pt", {"": BIG}, age=50)
    only.save("step_1.pt", {"": b"older"}, age=90)
    assert site.restore() == {}
    assert only.content("step_2.pt") == {"": BIG}


@pytest.mark.slow
def test_a_host_alone_puts_its_part_and_the_copy_of_a_lost_hosts_part_together(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=1)
    (only,) = site.disks
    lost = Disk(only.base, "lost")
    shards = {"__0_0.distcp": b"0" * 10, "__1_0.distcp": b"1" * 10}
    lost.save("step_2", {"__1_0.distcp": shards["__1_0.distcp"]}, age=50)
    metadata = index(*((name, 0, 10) for name in shards))
    only.save("step_2", {"__0_0.distcp": shards["__0_0.distcp"], ".metadata": metadata}, age=50)
    assert site.restore() == {}
    assert only.content("step_2") == {**shards, ".metadata": metadata}


@pytest.mark.slow
def test_a_part_that_nobody_can_complete_is_set_aside(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=1)
    (only,) = site.disks
    only.save("step_1.pt", {"": BIG}, age=90)
    only.save("step_2.pt", {"__1_0.distcp": b"1" * 10}, age=50)
    assert site.restore() == {}
    assert only.content("step_2.pt") is None


def test_nobody_is_asked_where_nobody_has_any(site: Site, no_call: None) -> None:
    assert site.restore(FleetOutcome({host: Holdings({}, {}, 0) for host in site.launch.names})) == {}


@pytest.mark.slow
def test_a_host_that_cannot_take_it_is_named_and_the_others_are_not(site: Site) -> None:
    site.disks[0].save("saved/step_1.pt", {"": BIG}, age=50)
    (site.disks[1].own / "saved").symlink_to(site.disks[1].base)
    errors = site.restore()
    assert list(errors) == ["n1"]
    assert "is not a folder" in errors["n1"].message


@pytest.mark.slow
def test_what_lies_on_hosts_that_take_no_part_any_more_is_used_and_nothing_changes_there(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=4, taking_part=2)
    first, second, third, fourth = site.disks
    first.save("step_1", {"model": b"older"}, age=90)
    third.save("step_2", {"model": BIG}, age=50)
    fourth.save("step_2", {"rng_1": b"1"}, age=50)
    (third.own / "step_3").mkdir()
    (third.own / "step_3" / "model").write_bytes(b"being written")
    assert site.restore() == {}
    for disk in (first, second):
        assert disk.content("step_2") == {"model": BIG, "rng_1": b"1"}
    assert fourth.content("step_2") == {"rng_1": b"1"}
    assert (third.own / "step_3").exists()
    assert site.warnings() == []


@pytest.mark.slow
def test_what_is_set_aside_and_who_could_not_be_asked_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path, hosts=3, taking_part=2)
    first, second, _ = site.disks
    for disk in (first, second):
        disk.save("step_1", {"model": b"older"}, age=90)
    first.save("step_2", {"__0_0.distcp": b"half of it"}, age=10)
    site.down = {"n2"}
    assert site.restore() == {}
    (lost, aside) = site.warnings()
    assert lost == (None, "n2 could not be asked for checkpoints of job: newer ones may lie there")
    (name,) = (path.name for path in first.own.glob(".step_2.aside-*"))
    assert aside == ("n0", f"step_2 is now {name}: it is not complete, or not what the run resumes from")


@pytest.mark.slow
def test_a_host_outside_of_the_run_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, hosts=3, taking_part=2)
    site.disks[0].save("step_1", {"model": b"older"}, age=90)
    site.disks[2].save("step_2", {"model": BIG}, age=50)
    real = LocalTransport.call

    def call(transport: LocalTransport, verb: str, *args: Any, **keys: Any) -> Any:
        if (transport.host, verb) == ("n2", "restore"):
            raise RemoteError("the disk is full", host="n2")
        return real(transport, verb, *args, **keys)

    monkeypatch.setattr(LocalTransport, "call", call)
    assert site.restore() == {}
    assert site.disks[1].content("step_1") == {"model": b"older"}
    why = "its checkpoints of job were left out: the disk is full; newer ones may lie there"
    assert site.warnings() == [("n2", why)]


def held_by(origin: Origin | None) -> FleetOutcome[Holdings]:
    row: CheckpointRow = {
        "writer": "n0",
        "entry": "step_2.pt",
        "version": "v",
        "time": "2026-01-02T11:00:00+00:00",
        "clock": "n0",
        "serial": 1,
        "run": "r1",
        "attempt": 1,
    }
    start = Start("r1", origin)
    return FleetOutcome({"n0": Holdings({}, {}, 0, (row,), (start,)), "n1": Holdings({}, {}, 0)})


def test_a_checkpoint_of_a_run_from_another_folder_is_refused(site: Site) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_others(site.launch, held_by(Origin("ann", "desk", "/home/ann/exp", 9)))
    assert refused.value.message == (
        "job would resume from step_2.pt, which run r1 saved: it was started from ann@desk:/home/ann/exp, "
        "not from me@here:/home/me; nothing was started"
    )
    assert "--any-project" in str(refused.value.hint)


@pytest.mark.parametrize("origin", [None, Origin("me", "here", "/home/me", 1), Origin("me", "here", "/moved", 1)])
def test_a_checkpoint_of_this_folder_or_of_nobody_known_is_taken(site: Site, origin: Origin | None) -> None:
    refuse_others(site.launch, held_by(origin))
    refuse_others(site.launch, FleetOutcome())
