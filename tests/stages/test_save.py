"""Asking hosts for a checkpoint: every host is asked or no host, and which checkpoint counts as the answer."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl.errors import HostsFailed, NotSaved, Unreachable
from ddpctl.spec.checkpoints import job_checkpoints
from ddpctl.spec.event import Event, Note
from ddpctl.spec.kill import SavedOutcome
from ddpctl.spec.origin import JobId
from ddpctl.stages import save
from ddpctl.stages.status import find_run
from ddpctl.transport.base import Frame
from ddpctl_worker.rules.entries import step_of
from tests.transport.dry import Asked, DryFleet, DryTransport, Stream

HOSTS = ["node0", "node1"]
BEFORE, AFTER = "2026-01-02T03:04:05.000+00:00", "2026-01-02T03:04:06.000+00:00"

FILE = {"size": 3, "sha256": "0" * 64, "mtime_ns": 1, "save": 1}


@pytest.fixture(autouse=True)
def _quick(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(save, "SAVE_POLL_S", 0.01)
    monkeypatch.setattr(save, "SAVE_QUIET_S", 0.0)


def manifest(writer: str, time: str, entry: str = "step_7", **more: Any) -> dict[str, Any]:
    made = {"entry": entry, "host": writer, "step": 7, "time": time, "size": 3, "version": time[17:19] * 16}
    made.update(serial=1, run="r1", attempt=1, clock=writer)
    return {**made, "files": {"": FILE}, "references": None, **more}


class Cluster:
    """Two hosts; node1 may have deaf ranks, and the manifests of both hosts change with each look."""

    def __init__(
        self, *looks: list[dict[str, Any]], deaf: bool = False, absent: int = 0, timeout: float = 20.0
    ) -> None:
        self.looks, self.deaf, self.absent, self.timeout = list(looks), deaf, absent, timeout
        self.copies: list[list[dict[str, Any]]] = []  # the manifests of node1, look by look
        self.states = {"node0": ["running"], "node1": ["running"]}
        self.newest: dict[str, str | None] = {"node0": BEFORE, "node1": None}  # when each host was asked
        self.hosts = [DryTransport(name, self.answers()) for name in HOSTS]
        self.told: list[Event] = []

    def answers(self) -> dict[str, Any]:
        line = {"rank": 0, "stream": "stdout", "time": 5.0, "text": "busy", "end": "\n", "offset": 5, "attempt": 1}
        frame = Frame({"lines": {name: [value] for name, value in line.items()}, "offset": 5, "more": False})
        tail = Stream([frame], {"offset": 5, "state": "running"})
        return {"status": self.status, "ask_checkpoint": self.ask, "checkpoints": self.held, "tail": tail}

    def status(self, asked: Asked) -> dict[str, Any]:
        states = self.states[asked.host]
        state = states.pop(0) if len(states) > 1 else states[0]
        record = {
            "project": "exp",
            "hosts": HOSTS,
            "checkpoint": {"signal": "SIGUSR2", "timeout": self.timeout, "replicas": 1},
        }
        names = {"run": "r1", "job": "train", "cluster": "lab", "host": asked.host, "node_rank": 0, "state": state}
        return {"runs": [{**names, "record": record}]}

    def ask(self, asked: Asked) -> dict[str, Any]:
        number = HOSTS.index(asked.host)
        assert asked.args["signal"] == "SIGUSR2"
        deaf = [{"rank": 1, "pid": 77}] if self.deaf and number else []
        absent = self.absent if number else 0
        sent = asked.args["send"] and not deaf and not absent
        return {"ranks": [number], "deaf": deaf, "absent": absent, "sent": sent, "newest": self.newest[asked.host]}

    def held(self, asked: Asked) -> dict[str, Any]:
        if asked.host != "node0":
            return {"manifests": self.copies.pop(0) if self.copies else [], "unknown": []}
        return {"manifests": self.looks.pop(0) if len(self.looks) > 1 else self.looks[0], "unknown": []}

    def save(self, last: bool = False) -> SavedOutcome:
        fleet = DryFleet(self.hosts)
        return save.save_run(fleet, find_run(fleet, "train"), self.told.append, last=last)

    def sent_to(self) -> list[str]:
        calls = [call for host in self.hosts for call in host.calls if call.verb == "ask_checkpoint"]
        return [call.host for call in calls if call.args["send"]]


def test_the_new_one_is_waited_for() -> None:
    old, new = manifest("node0", BEFORE), manifest("node0", AFTER)
    cluster = Cluster([old], [old], [new])
    found = cluster.save()
    assert (found.name, found.step, found.size, found.hosts) == ("step_7", 7, 3, ("node0",))
    assert cluster.sent_to() == HOSTS
    assert [event.message for event in cluster.told if isinstance(event, Note)] == [
        "asked 2 ranks to save; waiting for the checkpoint, 20 s at most"
    ]


def test_before_a_kill_a_copy_on_another_host_is_waited_for() -> None:
    old, new = manifest("node0", BEFORE, files={"": {**FILE, "sha256": "1" * 64}}), manifest("node0", AFTER)
    cluster = Cluster([old], [new])
    cluster.copies = [[], [], [old], [new]]
    assert cluster.save(last=True).name == "step_7"
    assert cluster.copies == []
    cluster = Cluster([old], [new])
    cluster.copies = [[], [], [new]]
    assert cluster.save().name == "step_7"
    assert cluster.copies == [[new]], "a run that goes on copies it later"


def test_a_copy_that_does_not_come_is_a_warning() -> None:
    cluster = Cluster([manifest("node0", BEFORE)], [manifest("node0", AFTER)], timeout=0.1)
    assert cluster.save(last=True).name == "step_7"
    assert [event.message for event in cluster.told if isinstance(event, Note) and event.level == "warning"] == [
        "r1: not all of the save has a copy on another host yet: step_7 on node0"
    ]


def test_what_only_got_another_name_is_not_new() -> None:
    renamed = manifest("node0", BEFORE, "step_7.prev")
    with pytest.raises(NotSaved, match="no new complete checkpoint within"):
        Cluster([renamed], timeout=0.1).save()


def test_what_is_not_complete_is_not_new() -> None:
    shards: dict[str, Any] = {"files": {"__0_0.distcp": FILE}}
    index: dict[str, Any] = {"files": {".metadata": FILE}, "references": {"__0_0.distcp": 3}}
    part, rest = manifest("node1", AFTER, **shards), manifest("node0", AFTER, **index)
    with pytest.raises(NotSaved):
        Cluster([part], timeout=0.1).save()
    assert Cluster([part], [part, rest]).save().name == "step_7"


def test_a_host_of_another_run_saved_nothing_for_this_one() -> None:
    with pytest.raises(NotSaved):
        Cluster([manifest("node7", AFTER)], timeout=0.1).save()


def test_one_rank_that_would_die_of_it_keeps_it_from_all_hosts() -> None:
    cluster = Cluster([], deaf=True)
    with pytest.raises(NotSaved, match=r"rank 1 on node1 \(pid 77\) would die of SIGUSR2") as caught:
        cluster.save()
    assert cluster.sent_to() == []
    assert caught.value.hint
    assert "signal.signal(signal.SIGUSR2, " in caught.value.hint


def test_ranks_that_have_not_started_keep_it_from_all_hosts() -> None:
    cluster = Cluster([], absent=2)
    with pytest.raises(NotSaved, match="2 ranks on node1 have not started, or have ended"):
        cluster.save()
    assert cluster.sent_to() == []


def test_a_host_that_cannot_be_asked_keeps_it_from_all() -> None:
    cluster = Cluster([])
    run = find_run(DryFleet(cluster.hosts), "train")
    fleet = DryFleet([cluster.hosts[0], DryTransport("node1", {}, unreachable=Unreachable("no route", host="node1"))])
    with pytest.raises(HostsFailed, match="so no rank was"):
        save.save_run(fleet, run, cluster.told.append)
    assert cluster.sent_to() == []


def test_a_run_that_is_over_has_nobody_to_ask() -> None:
    cluster = Cluster([])
    cluster.states = {host: ["killed"] for host in HOSTS}
    with pytest.raises(NotSaved, match=r"r1 is over \(killed\)"):
        cluster.save()


def test_a_run_that_ends_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "SAVE_STATUS_S", 0.0)
    cluster = Cluster([])
    cluster.states = {host: ["running", "failed"] for host in HOSTS}
    with pytest.raises(NotSaved, match="r1 ended before it had saved: failed"):
        cluster.save()


def test_who_never_saves_is_quoted() -> None:
    with pytest.raises(NotSaved, match=r"within 0.1 s \(node0:0 said last: busy; node1:0 said last: busy\)"):
        Cluster([], timeout=0.1).save()


def test_a_host_that_does_not_say_what_it_has_is_named() -> None:
    with pytest.raises(NotSaved, match=r"within 0.1 s \(node0: .*host"):
        Cluster([{"host": "node0"}], timeout=0.1).save()


def ranks(time: str, step: int, *numbers: int) -> list[dict[str, Any]]:
    return [manifest("node0", time, f"step_{step}_rank_{number}.pt", step=step) for number in numbers]


def test_a_save_of_several_files_is_waited_for_to_its_end() -> None:
    """Each rank had a file of its own in the save before."""
    old, first, both = ranks(BEFORE, 6, 0, 1), ranks(AFTER, 7, 0), ranks(AFTER, 7, 0, 1)
    cluster = Cluster(old, [*old, *first], [*old, *first], [*old, *both])
    cluster.save()
    assert len(cluster.looks) == 1
    assert not [event for event in cluster.told if isinstance(event, Note) and event.level == "warning"]


@pytest.mark.slow
def test_what_of_a_save_does_not_come_is_said() -> None:
    old, first = ranks(BEFORE, 6, 0, 1), ranks(AFTER, 7, 0)
    cluster = Cluster(old, [*old, *first], timeout=0.3)
    assert cluster.save().name == "step_7_rank_0.pt"
    (said,) = [event.message for event in cluster.told if isinstance(event, Note) and event.level == "warning"]
    assert said == "r1: not all of the save is there: step_#_rank_1.pt was not written again"


def test_a_script_that_saves_under_another_name_when_it_is_asked_is_not_waited_for_longer() -> None:
    old = ranks(BEFORE, 6, 0, 1)
    cluster = Cluster(old, [*old, manifest("node0", AFTER, "asked.pt", step=None)])
    assert cluster.save().name == "asked.pt"


HOUR_AGO = "2026-01-02T02:04:05.000+00:00"
# By a clock that is an hour ahead.
FAST_BEFORE, FAST_AFTER = "2026-01-02T04:04:05.000+00:00", "2026-01-02T04:04:06.000+00:00"


@pytest.mark.parametrize("fast", HOSTS)
@pytest.mark.parametrize("names", [("step_6_rank_%d.pt", "step_7_rank_%d.pt"), ("rank_%d.pt", "rank_%d.pt")])
def test_files_of_hosts_whose_clocks_differ_are_one_save(names: tuple[str, str], fast: str) -> None:
    """The names of the files hold a step, or are used again by each save.

    The host with the fast clock saves first.
    """

    def saved(host: str, name: str, time: str) -> dict[str, Any]:
        entry = name % HOSTS.index(host)
        return manifest(host, time, entry, step=step_of(entry))

    (slow,) = {*HOSTS} - {fast}
    before = [saved(fast, names[0], FAST_BEFORE), saved(slow, names[0], BEFORE)]
    after = [saved(fast, names[1], FAST_AFTER), saved(slow, names[1], AFTER)]
    cluster = Cluster(before, [after[0], before[1]], [after[0], before[1]], after)
    cluster.newest = {fast: FAST_BEFORE, slow: BEFORE}
    cluster.save()
    assert len(cluster.looks) == 1, "the other host is waited for"


def test_what_one_host_wrote_long_before_is_of_an_earlier_save() -> None:
    old = [manifest("node0", HOUR_AGO, "best.pt", step=None), manifest("node0", BEFORE, "last.pt", step=None)]
    cluster = Cluster(old, [old[0], manifest("node0", AFTER, "last.pt", step=None)])
    cluster.save()
    assert cluster.looks == [[old[0], manifest("node0", AFTER, "last.pt", step=None)]]


def test_what_an_earlier_attempt_wrote_is_of_an_earlier_save() -> None:
    """The second attempt runs without node1."""
    gone = manifest("node1", BEFORE, "step_6_rank_1.pt", step=6)
    old, new = ranks(BEFORE, 6, 0), ranks(AFTER, 7, 0)
    for one in (*old, *new):
        one["attempt"] = 2
    cluster = Cluster([gone, *old], [gone, *old, *new], timeout=0.3)
    cluster.newest["node1"] = BEFORE
    cluster.save()
    assert not [event for event in cluster.told if isinstance(event, Note) and event.level == "warning"]


def test_a_folder_that_one_host_has_not_saved_again_is_waited_for_whatever_its_clock_says() -> None:
    """Node1 is an hour ahead: its old shard has the latest time."""
    index: dict[str, Any] = {"references": {"__0_0.distcp": 3}, "step": None}
    shard = {"files": {"__0_0.distcp": FILE}, "step": None}
    new_index = manifest("node0", AFTER, "latest", files={".metadata": {**FILE, "save": 2}}, **index)
    known = job_checkpoints(
        JobId("lab", "exp", "train"),
        {
            "node0": {"manifests": [new_index, manifest("node0", AFTER, "last.pt", step=None)], "unknown": []},
            "node1": {"manifests": [manifest("node1", FAST_BEFORE, "latest", **shard)], "unknown": []},
        },
        {},
    )
    awaited = save._Awaited({"node0": BEFORE, "node1": FAST_BEFORE}, [])
    assert not awaited.look(known)
    assert awaited.left == ["latest is not complete"]


def test_what_a_host_got_from_another_one_is_not_new() -> None:
    """Its time is by a clock that is an hour ahead of its own."""
    copied = manifest("node1", FAST_BEFORE, clock="node0")
    cluster = Cluster([copied], timeout=0.1)
    cluster.newest = {"node0": FAST_BEFORE, "node1": BEFORE}
    with pytest.raises(NotSaved, match="no new complete checkpoint within"):
        cluster.save()
