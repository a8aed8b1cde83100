"""The supervisor's doctor: a hub and a member in one process, which watch real small processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from ddpctl_worker.doctor import hung, look, watch
from ddpctl_worker.doctor.hosts import HostFacts
from ddpctl_worker.doctor.limits import (
    KEPT_COLLECTIVES,
    MOST_MESSAGES,
    REPEAT_S,
    SENT_ENTRIES,
    SENT_FRAMES,
)
from ddpctl_worker.doctor.look import Subject, Tools
from ddpctl_worker.doctor.watch import RunWatch, limit_lists, shorten_look
from ddpctl_worker.gang.limits import MAX_MESSAGE
from ddpctl_worker.machine.clocks import Offset
from ddpctl_worker.rules import verdict
from ddpctl_worker.rules.flight import Entry
from tests.worker.handclock import HandClock
from tests.worker.looks import LOOP, group
from tests.worker.looks import look as a_look
from tests.worker.node import eventually

pytestmark = pytest.mark.slow
STALL = 0.5
HOSTS = ["node0", "node1"]


class Records:
    """The flight records of the ranks, in place of torch's server in each rank."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[int, bool]] = {}  # pid -> collectives, and whether the last collective is done

    def of(self, folder: str, pid: int, seconds: float = 0.0) -> list[Entry] | None:
        if pid not in self.made:
            return None
        count, done = self.made[pid]
        now = time.time()
        return [
            Entry("0", seq, "all_reduce", 4, done or seq < count, now - 60.0 if seq == count else now - 90.0 + seq, "")
            for seq in range(1, count + 1)
        ]


class Node:
    """A watch with a single rank, and the messages and files that it has sent and saved."""

    def __init__(self, host: str, rank: int, pid: int) -> None:
        self.host, self.rank, self.pid = host, rank, pid
        self.said: list[dict[str, Any]] = []
        self.saved: list[dict[str, Any]] = []
        self.to: list[Node] = []  # the nodes that receive its messages
        self.subjects = [Subject(rank, 0, pid)]
        self.gone: list[dict[str, Any]] = []
        self.timeouts: dict[int, int] = {}  # that the rank has printed
        tools = Tools("/nonexistent", None)
        self.watch = RunWatch(
            host,
            HOSTS,
            STALL,
            tools,
            lambda: self.subjects,
            lambda: self.gone,
            dict,
            lambda: dict(self.timeouts),
            self.say,
            self.saved.append,
            lambda host: Offset(0.0, 0.0),
            HostFacts(),
        )

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)
        for other in self.to:
            other.watch.take_message(self.host, message)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    """Everything in a hurry, but each look is waited for: this process may get no processor for seconds."""
    made = Records()
    monkeypatch.setattr(look, "record_of", made.of)
    monkeypatch.setattr(look, "LOOK_DEADLINE_S", 60.0)
    monkeypatch.setattr(watch, "GLANCE_S", 0.1)
    monkeypatch.setattr(watch, "OTHER_LOOKS_S", 60.0)
    monkeypatch.setattr("ddpctl_worker.doctor.stall.LOOK_AGAIN_S", 0.2)
    return made


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(watch, "note", made.append)
    return made


@pytest.fixture
def nodes(records: Records) -> Iterator[list[Node]]:
    processes = [subprocess.Popen(["sleep", "300"]) for _ in HOSTS]
    made = [Node(host, rank, processes[rank].pid) for rank, host in enumerate(HOSTS)]
    made[0].to, made[1].to = [made[1]], [made[0]]
    try:
        yield made
    finally:
        for node in made:
            node.watch.stop()
        for process in processes:
            process.kill()
            process.wait()


def until(holds: Callable[[], Any], seconds: float = 20.0) -> None:
    eventually(holds, "it holds", seconds, pause=0.02)


def step(records: Records, nodes: list[Node]) -> None:
    """Both ranks have done their first steps."""
    for node in nodes:
        records.made[node.pid] = (3, True)
        node.watch.start()
    until(lambda: nodes[0].watch._stall._moved is not None)


def begin(records: Records, nodes: list[Node]) -> None:
    """Both ranks have done their first steps; then rank 1 does not come to the next collective."""
    step(records, nodes)
    records.made[nodes[0].pid] = (4, False)


def test_a_stall_is_told_once_and_cleared_when_the_run_moves(
    records: Records, nodes: list[Node], notes: list[str]
) -> None:
    hub, member = nodes
    begin(records, nodes)
    until(lambda: hub.watch.diagnosis and member.watch.diagnosis)
    for node in nodes:
        assert node.watch.diagnosis is not None
        assert node.watch.diagnosis["suspects"] == [{"host": "node1", "rank": 1}]
        assert node.watch.diagnosis["stuck"]
    first = hub.saved[-1]["diagnosis"]["time"]
    count = len(hub.saved)
    until(lambda: len(hub.saved) > count + 1)  # looked at again, and again
    assert [note.partition(":")[0] for note in notes].count("doctor") == 2  # once by each node
    assert hub.saved[-1]["diagnosis"]["time"] == first
    records.made.update({node.pid: (5, True) for node in nodes})
    until(lambda: hub.watch.diagnosis is None and member.watch.diagnosis is None)
    assert hub.saved[-1]["diagnosis"]["over"]
    assert notes[2:] == ["doctor: the run moves again"] * 2


class Verdicts:
    """A stand-in for the judgement of looks."""

    def __init__(self) -> None:
        self.stuck, self.count = True, 0

    def diagnose(self, looks: list[Any], **_: Any) -> verdict.Diagnosis:
        self.count += 1
        return verdict.Diagnosis("rank 1 is at x.py:1", self.stuck, [{"host": "node1", "rank": 1}], [], [], [], 0.0)


def test_without_a_record_a_look_that_finds_nothing_withdraws_the_diagnosis(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diagnosis keeps the time of the first look. The ranks sleep all the time."""
    made = Verdicts()
    monkeypatch.setattr(verdict, "diagnose", made.diagnose)
    hub, member = nodes
    for node in nodes:
        node.watch.start()
    until(lambda: made.count >= 3)
    told = [one["diagnosis"] for one in hub.saved]
    assert len({(one["since"], one["time"]) for one in told}) == 1
    stood = datetime.fromisoformat(told[0]["time"]) - datetime.fromisoformat(told[0]["since"])
    assert STALL <= stood.total_seconds() < 60.0
    made.stuck = False
    until(lambda: hub.watch.diagnosis is None and member.watch.diagnosis is None)
    assert hub.saved[-1]["diagnosis"]["over"]


def test_what_the_nodes_say_to_each_other(records: Records, nodes: list[Node]) -> None:
    begin(records, nodes)
    until(lambda: nodes[1].watch.diagnosis)
    assert {one["what"] for one in nodes[0].said} == {"look", "report"}
    assert {one["what"] for one in nodes[1].said} == {"glance", "looked"}
    first = next(one for one in nodes[1].said if one["what"] == "looked")
    assert (first["round"], first["look"]["rank"], first["look"]["host"]) == (1, 1, "node1")


def test_a_member_that_never_answers_is_absent(
    records: Records, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "OTHER_LOOKS_S", 1.5)
    hub, member = nodes
    over = threading.Event()

    def late(**_: bool) -> list[dict[str, Any]]:
        over.wait(60)
        return []

    monkeypatch.setattr(member.watch, "look", late)
    begin(records, nodes)  # its glances arrive, and its looks do not
    until(lambda: hub.watch.diagnosis)
    over.set()
    assert hub.watch.diagnosis is not None
    assert hub.watch.diagnosis["missing"][0] == "node1 did not answer"
    assert hub.watch.diagnosis["suspects"] == []
    assert "node1 did not answer" in hub.watch.diagnosis["verdict"]


def test_a_rank_that_is_gone_has_ended_and_its_host_is_not_absent(records: Records, nodes: list[Node]) -> None:
    hub, member = nodes
    step(records, nodes)
    until(lambda: 1 in hub.watch._host_of)
    member.gone = [dict(member.subjects[0]._asdict(), state="ended", ended_s=9.0)]
    member.subjects = []
    until(lambda: 1 not in hub.watch._stall._ranks)
    records.made[hub.pid] = (4, False)
    until(lambda: hub.watch.diagnosis)
    assert hub.watch.diagnosis is not None
    assert hub.watch.diagnosis["suspects"] == [{"host": "node1", "rank": 1}]
    assert hub.watch.diagnosis["verdict"].endswith("rank 1 on node1 has ended")
    assert not any("did not answer" in text for text in hub.watch.diagnosis["missing"])


class Speed:
    """A stand-in for the judgement of speed, with the reports that it was fed and the slow ranks that it returns."""

    def __init__(self) -> None:
        self.fed: list[dict[int, Any]] = []
        self.slow: list[dict[str, Any]] = []

    def feed(self, reports: dict[int, Any], errors: dict[int, float]) -> list[dict[str, Any]]:
        self.fed.append(reports)
        return [dict(one) for one in self.slow]


@pytest.mark.parametrize("heard", [True, False])
def test_speed_is_judged_once_every_host_has_said_what_is_new(
    records: Records, nodes: list[Node], monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    monkeypatch.setattr(watch, "GLANCE_S", 1.0)
    hub, member = nodes
    hub.watch._slow = speed = Speed()  # type: ignore[assignment]
    for node in nodes:
        records.made[node.pid] = (3, True)
    if not heard:
        member.to = []
        monkeypatch.setattr(watch, "OTHER_LOOKS_S", 1.5)
        records.made[hub.pid] = (KEPT_COLLECTIVES, True)  # more collectives than are kept for a rank that says nothing
    hub.watch.start()
    time.sleep(0.3)
    member.watch.start()
    until(lambda: speed.fed)
    assert set(speed.fed[0]) == ({0, 1} if heard else {0})


def test_nobody_is_slow_any_more_once_the_ranks_are_started_again(records: Records, nodes: list[Node]) -> None:
    hub = nodes[0]
    slow = [{"host": "node1", "rank": 1, "lag_ms": 20.0, "last_share": 0.9, "why": []}]
    glance = {"cpu": 80.0, "bytes": 0.0, "place": ["0", 900, 0], "pending": None, "new": {"0": [(900, 1.0)]}}
    old = [{"0": {**glance, "pid": 10}}, {"1": {**glance, "pid": 11}}]
    new = [{"0": {**glance, "pid": 12}}, {"1": {**glance, "pid": 13}}]
    for node, ranks in zip(nodes, old, strict=True):
        hub.watch._feed(node.host, ranks)
    hub.watch._tell(None, slow)
    before = hub.watch._slow
    hub.watch._feed("node0", old[0])
    assert (hub.watch.slow, hub.watch._slow) == (slow, before)
    hub.watch._feed("node0", new[0])
    hub.watch._feed("node1", old[1])  # a glance from before the restart, that comes late
    hub.watch._feed("node1", new[1])
    assert hub.watch._slow is not before
    assert set(hub.watch._unjudged.ranks) == {1}
    assert hub.watch.slow == []
    assert hub.saved[-1]["slow"] == hub.said[-1]["slow"] == []


def test_the_figures_of_a_slow_rank_stay_up_to_date(nodes: list[Node]) -> None:
    hub = nodes[0]
    hub.watch._slow = speed = Speed()  # type: ignore[assignment]
    hub.watch._host_of, hub.watch._all_counted = {1: "node1"}, True

    def told(now: float, lag_ms: float, busy: float) -> list[Any]:
        speed.slow = [{"rank": 1, "lag_ms": lag_ms, "last_share": 0.9}]
        hub.watch._facts_of = {"node0": {"busy": 20.0}, "node1": {"busy": busy}}
        hub.saved.clear()
        hub.watch._judge_speed(now)
        return [(one["slow"][0]["lag_ms"], bool(one["slow"][0]["why"])) for one in hub.saved]

    assert told(1000.0, 20.0, 20.0) == [(20.0, False)]
    assert told(1005.0, 80.0, 98.0) == []  # not so soon
    assert told(1061.0, 24.0, 20.0) == []  # much as before
    assert told(1066.0, 26.0, 20.0) == [(26.0, False)]
    assert told(1127.0, 26.0, 98.0) == [(26.0, True)]
    speed.slow = []
    hub.watch._judge_speed(1130.0)
    assert hub.saved[-1]["slow"] == []


def test_the_glances_of_many_ranks_fit_the_wire_and_are_taken_as_one(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, member = nodes
    new = {"0": [(1 << 61, 1_800_000_000.123456)] * KEPT_COLLECTIVES}
    glance = {"pid": 1, "place": ["0", 1 << 61, 300], "pending": None, "cpu": 100.0, "bytes": 1e9, "new": new}
    monkeypatch.setattr(member.watch, "_at", lambda one, now: dict(glance))
    taken: list[Any] = []
    monkeypatch.setattr(hub.watch, "_feed", lambda host, ranks: taken.append(set(ranks)))
    for count in (100, 8, 0):
        member.subjects = [Subject(rank, rank, 1) for rank in range(count)]
        member.watch._glance(1000.0)
        assert taken == []
        for one in member.said:
            assert len(json.dumps(one)) < MAX_MESSAGE / 2
            hub.watch._take("node1", one)
        assert taken == [{str(rank) for rank in range(count)}]
        taken.clear()
        member.said.clear()


def test_a_diagnosis_of_many_ranks_fits_the_wire() -> None:
    ranks = range(4096)
    missing = [f"rank {rank}: no stack: {'x' * 250}" for rank in ranks]
    groups = [{"ranks": [rank], "where": f"somewhere.py:{rank} in a_function_with_a_name"} for rank in ranks]
    suspects = [{"host": f"node{rank}", "rank": rank} for rank in ranks]
    made = limit_lists(verdict.Diagnosis("", True, suspects, groups, [], missing, 1.0).to_json())
    assert len(json.dumps(made)) < MAX_MESSAGE / 2
    assert made["missing"][-1] == "and 3996 more"
    assert limit_lists(made | {"missing": missing[:3]})["missing"] == missing[:3]


def test_a_member_that_missed_a_report_hears_it_again(nodes: list[Node]) -> None:
    hub, member = nodes
    clock = hub.watch._clock = member.watch._clock = HandClock()
    slow = [{"host": "node1", "rank": 1, "lag_ms": 20.0, "last_share": 0.9, "why": []}]

    def exchange() -> None:
        """Let the member glance, and have both nodes take all their messages."""
        member.watch._glance(clock.now())
        for node in (hub, member):
            while node.watch._inbox:
                node.watch._take(*node.watch._inbox.popleft())

    exchange()
    assert hub.said == []  # there was no report yet
    hub.watch._tell(None, slow)
    exchange()
    assert member.watch.slow == slow
    hub.to = []  # no connection
    clock.sleep(0.01)  # reports differ in their milliseconds
    hub.watch._tell(None, [])
    clock.sleep(REPEAT_S + 1.0)
    hub.to = [member]
    exchange()
    assert member.watch.slow == []
    assert member.saved[-1] == hub.saved[-1]
    said = len(hub.said)
    clock.sleep(REPEAT_S + 1.0)
    exchange()
    assert len(hub.said) == said


def test_a_report_is_not_repeated_at_once(nodes: list[Node]) -> None:
    """Glances that are older than the report come just after it."""
    hub = nodes[0]
    hub.watch._tell(None, [])
    for _ in range(10):
        hub.watch._take("node1", {"what": "glance", "ranks": {}, "reported": None})
    assert len(hub.said) == 1


def test_no_speed_is_judged_before_every_rank_has_reported(
    records: Records, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is busy with its start may not answer the first times."""
    hub, member = nodes
    hub.watch._slow = speed = Speed()  # type: ignore[assignment]
    records.made[hub.pid] = (3, True)
    for node in nodes:
        node.watch.start()
    until(lambda: 1 in hub.watch._host_of)
    time.sleep(0.5)
    assert speed.fed == []
    records.made[member.pid] = (3, True)
    until(lambda: speed.fed)
    assert set(speed.fed[0]) == {0, 1}


def test_a_stopped_process_is_named(records: Records, nodes: list[Node]) -> None:
    step(records, nodes)
    os.kill(nodes[1].pid, signal.SIGSTOP)
    os.waitpid(nodes[1].pid, os.WUNTRACED)
    records.made[nodes[0].pid] = (4, False)
    until(lambda: nodes[0].watch.diagnosis)
    assert nodes[0].watch.diagnosis is not None
    assert "rank 1 on node1 is stopped" in nodes[0].watch.diagnosis["verdict"]


def test_words_that_make_no_sense_do_no_harm(records: Records, nodes: list[Node], notes: list[str]) -> None:
    hub, member = nodes
    junk: list[Any] = [{}, {"what": 7}, {"what": "look", "round": "x"}, {"what": "glance", "ranks": {"x": 1}}]
    junk += [
        {"what": "glance", "ranks": 7},
        {"what": "looked", "round": 1, "look": 7},
        {"what": "report", "diagnosis": 7},
    ]
    begin(records, nodes)
    for one in junk:
        hub.watch.take_message("node1", one)
        member.watch.take_message("node0", one)
    until(lambda: hub.watch.diagnosis and member.watch.diagnosis, 40.0)


def test_the_inbox_is_bounded_and_nobody_waits_for_it(nodes: list[Node]) -> None:
    for _ in range(MOST_MESSAGES + 1000):
        nodes[0].watch.take_message("node1", {"what": "glance", "ranks": {}})
    assert len(nodes[0].watch._inbox) == MOST_MESSAGES


def test_a_watch_that_does_not_decide_looks_all_the_same(nodes: list[Node]) -> None:
    (found,) = nodes[1].watch.look(0.1)
    assert (found["host"], found["rank"], found["output_age_s"], found["pause_s"]) == ("node1", 1, None, 0.0)


def test_a_signal_only_for_a_person_or_once_the_run_is_stuck(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tools] = []

    def looked(subjects: Any, tools: Tools, interval: float) -> list[Any]:
        seen.append(tools)
        return []

    monkeypatch.setattr(look, "look", looked)
    one = nodes[1].watch
    one.look()
    one.look(asked=True)
    one._keep({"diagnosis": {"verdict": "stuck", "suspects": [], "over": None}, "slow": []})
    one.look()
    assert [(tools.asked, tools.stuck) for tools in seen] == [(False, False), (True, False), (False, True)]


def test_a_look_for_the_record_is_short() -> None:
    one = a_look(0, groups={"0": group(LOOP * 50)}, stack=[["x.py", 1, "f"]] * 60, threads=[{"name": "", "stack": []}])
    made = shorten_look(one)
    assert len(made["groups"]["0"]["entries"]) == SENT_ENTRIES
    assert made["groups"]["0"]["entries"][-1] == one["groups"]["0"]["entries"][-1]
    assert len(made["stack"]) == SENT_FRAMES
    assert shorten_look(a_look(0, stack=None, groups=None))["stack"] is None


def test_the_missing_rank_is_named_once_every_host_shows_its_ranks(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may not have found its ranks yet, or the end of the run may have killed the rank."""
    monkeypatch.setattr(hung, "SEARCH_AFTER_S", 0.1)
    monkeypatch.setattr(hung, "SEARCH_S", 600.0)
    decides, other = nodes[0].watch, nodes[1].watch
    own = [a_look(0, host="node0"), a_look(2, host="node0")]
    shown: dict[str, list[dict[str, Any]]] = {"node1": []}
    asked: list[str] = []

    def look_at(host: str) -> list[dict[str, Any]]:
        asked.append(host)
        return own if host == "node0" else shown["node1"]

    monkeypatch.setattr(decides, "look", lambda *args, **how: look_at("node0"))
    monkeypatch.setattr(other, "look", lambda *args, **how: look_at("node1"))
    for node in nodes:
        node.watch.start()
    decides.search({0: "node0"})
    until(lambda: asked.count("node0") > 2)
    assert decides.search({0: "node0"}) is None, "rank 1 was not seen"
    shown["node1"] = [{**a_look(1, host="node1", state="ended", stack=None), "ended_s": 0.0}]
    asked.clear()
    until(lambda: asked.count("node0") > 2)
    assert decides.search({0: "node0"}) is None, "rank 1 may have been killed"
    shown["node1"] = [a_look(1, host="node1")]
    until(lambda: decides.search({0: "node0", 2: "node0"}))
    found = decides.search({0: "node0", 2: "node0"})
    assert found is not None
    assert (found.host, found.rank) == ("node1", 1)


def test_the_search_does_not_wait_for_a_host_whose_watch_has_stopped(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher of the failed rank ends at once, and the watch with it. Then only the missing rank lives."""
    monkeypatch.setattr(hung, "SEARCH_AFTER_S", 0.1)
    monkeypatch.setattr(hung, "SEARCH_S", 600.0)
    decides, other = nodes[0].watch, nodes[1].watch
    monkeypatch.setattr(decides, "look", lambda *args, **how: [a_look(0, host="node0")])
    for node in nodes:
        node.watch.start()
    other.stop()
    decides.search({1: "node1"})
    until(lambda: decides.search({1: "node1"}))  # a host that does not answer is waited for much longer


def test_a_search_goes_on_after_the_stop_until_the_rank_is_seen(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank of the node that decides has timed out. On a busy host another rank may not show its stack at once."""
    monkeypatch.setattr(hung, "SEARCH_AFTER_S", 0.1)
    monkeypatch.setattr(hung, "SEARCH_S", 600.0)
    decides, other = nodes[0].watch, nodes[1].watch
    seen = [[a_look(1, host="node1", stack=None)], [a_look(1, host="node1")]]
    monkeypatch.setattr(decides, "look", lambda *args, **how: [])
    monkeypatch.setattr(other, "look", lambda *args, **how: seen.pop(0))
    for node in nodes:
        node.watch.start()
    decides.search({0: "node0"})
    decides.stop(undecided=True)
    until(lambda: decides.search({0: "node0"}))


def test_no_search_goes_on_once_the_cause_is_known(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """A look may send a signal, and the ranks that are being stopped may be saving their work."""
    monkeypatch.setattr(hung, "SEARCH_AFTER_S", 0.1)
    monkeypatch.setattr(hung, "SEARCH_S", 600.0)
    decides = nodes[0].watch
    monkeypatch.setattr(decides, "look", lambda *args, **how: [a_look(0, host="node0", stack=None)])
    decides.start()
    decides.search({1: "node1"})
    decides.stop()
    until(lambda: not decides._thread.is_alive())
    assert decides.search({1: "node1"}) is None


@pytest.mark.parametrize("passes", [True, False], ids=["a fault that passes", "a fault that lasts"])
def test_a_look_that_fails_is_tried_again_for_a_while(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    monkeypatch.setattr(hung, "SEARCH_AFTER_S", 0.1)
    monkeypatch.setattr(hung, "SEARCH_S", 600.0 if passes else 1.0)
    decides, other = nodes[0].watch, nodes[1].watch
    asked: list[int] = []

    def look_at(rank: int, host: str) -> list[dict[str, Any]]:
        asked.append(rank)
        if not passes or asked.count(0) < 3:
            raise RuntimeError("no look")
        return [a_look(rank, host=host)]

    monkeypatch.setattr(decides, "look", lambda *args, **how: look_at(0, "node0"))
    monkeypatch.setattr(other, "look", lambda *args, **how: look_at(1, "node1"))
    for node in nodes:
        node.watch.start()
    decides.search({0: "node0"})
    until(lambda: not decides._waited.searching)
    assert (decides.search({0: "node0"}) is not None) is passes


def test_the_missing_rank_is_found_while_a_printed_time_out_is_no_failure_yet(
    records: Records, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that printed it takes long to die. The missing rank arrives meanwhile, and then loses its peer."""
    monkeypatch.setattr(hung, "SEARCH_S", 600.0)
    hub, member = nodes
    hub.rank, member.rank = 1, 0  # the missing rank is on the member
    for node in nodes:
        node.subjects = [Subject(node.rank, 0, node.pid)]
        records.made[node.pid] = (3, True)
        node.watch.start()
    records.made[hub.pid] = (4, False)
    until(lambda: hub.watch._waited._waits.get(1) == hung.Waits("0", 4, "all_reduce", 4))
    hub.timeouts = {0: 1}
    until(lambda: hub.watch._waited.found)
    records.made.update({node.pid: (4, True) for node in nodes})
    found = hub.watch.search({1: "node0"})
    assert found is not None
    assert (found.host, found.rank) == ("node1", 0)
    assert found.message.startswith("rank 0 on node1 had not reached all_reduce #4: it was ")
