"""Who is asked to admit a host that is back, and what it is given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl.errors import ConnectError, RemoteError, Unreachable
from ddpctl.spec.event import Event, Note
from ddpctl.spec.merge import merge_runs
from ddpctl.spec.outcome import RunStatus
from ddpctl.stages.follow import follow
from ddpctl.stages.rejoin import rejoin, rejoin_all
from ddpctl.transport.base import Frame
from ddpctl_worker.contract import BUSY, CORRUPT, NO_SUCH_RUN
from tests.transport.dry import Answer, DryFleet, DryTransport, Stream

HOSTS = ["a", "b", "c"]
SECRETS: dict[str, Any] = {"gang_key": "ab" * 32, "copying": None, "secrets": {"TOKEN": "x"}, "notify": []}
GIVEN = {**SECRETS, "peers": {host: ["10.0.0.1", 29600] for host in HOSTS}, "moved": {"b": [1, 29700]}}
NOBODY = RemoteError("no answer", kind=BUSY, host="b")


def part(host: str, state: str = "running", version: int = 1) -> dict[str, Any]:
    first = {"attempt": 1, "hosts": HOSTS, "started": "2026-01-02T03:04:05Z", "ended": None, "cause": None}
    agreed = {"term": 1, "version": version, "attempts": [{**first, "set_aside": []}], "live": True, "over": None}
    who = {"run": "run-1", "job": "train", "cluster": "lab", "host": host, "node_rank": HOSTS.index(host)}
    record = {"project": "exp", "hosts": HOSTS, "restart": {"first": {"hosts": HOSTS, "started": first["started"]}}}
    return {**who, "state": state, "agreed": agreed, "record": record}


def status(host: str, state: str = "running", version: int = 1) -> Answer:
    return {"runs": [part(host, state, version)]}


def fleet(admit_a: Answer, admit_b: Answer, back: Answer) -> DryFleet:
    a = DryTransport("a", {"status": status("a"), "admit": admit_a})
    b = DryTransport("b", {"status": status("b", version=2), "admit": admit_b})
    return DryFleet([a, b, DryTransport("c", {"status": status("c", "lost"), "rejoin": back})])


def run() -> RunStatus:
    return merge_runs({host: [part(host, "lost" if host == "c" else "running")] for host in HOSTS})[0]


def asked(nodes: DryFleet, verb: str) -> list[str]:
    return [one.host for one in nodes.calls if one.verb == verb]


def test_the_host_that_knows_the_newest_is_asked_first() -> None:
    nodes = fleet({"over": False, **GIVEN}, {"over": False, **GIVEN}, {"status": part("c", "starting")})
    assert rejoin(nodes, run(), "c")
    assert asked(nodes, "admit") == ["b"]
    given = next(one.args for one in nodes.calls if one.verb == "rejoin")
    assert given == {"run": "run-1", **GIVEN}


def test_another_one_is_asked_where_that_does_not_answer() -> None:
    nodes = fleet({"over": False, **GIVEN}, NOBODY, {"status": part("c", "starting")})
    assert rejoin(nodes, run(), "c")
    assert asked(nodes, "admit") == ["a", "b"]


def ended(host: str) -> DryTransport:
    return DryTransport(host, {"status": status(host, "lost" if host == "c" else "failed")})


@pytest.mark.parametrize("nodes", [fleet(NOBODY, {"over": True}, NOBODY), DryFleet(map(ended, HOSTS))])
def test_a_run_that_is_over_is_let_be(nodes: DryFleet) -> None:
    assert not rejoin(nodes, run(), "c")
    assert asked(nodes, "rejoin") == []


def test_where_no_agent_answers_at_that_moment_it_is_to_be_tried_again() -> None:
    nodes = fleet(NOBODY, Unreachable("no route", host="b"), NOBODY)
    with pytest.raises(ConnectError, match="no agent of the run answers on a, b to let it") as failed:
        rejoin(nodes, run(), "c")
    assert failed.value.host == "c"


def test_of_a_live_run_the_lost_hosts_are_brought_back() -> None:
    told: list[Event] = []
    nodes = fleet({"over": False, **GIVEN}, NOBODY, {"status": part("c", "starting")})
    assert rejoin_all(nodes, run(), told.append) == ["c"]
    nodes = fleet({"over": False, **GIVEN}, NOBODY, Unreachable("no route", host="c"))
    assert rejoin_all(nodes, run(), told.append) == []
    notes = [one for one in told if isinstance(one, Note)]
    assert [(note.host, note.level) for note in notes] == [("c", "info"), ("c", "warning")]
    assert "no route" in notes[1].message


def test_a_spare_alone_brings_back_those_that_lost_power() -> None:
    parts = {"a": part("a", "lost"), "b": part("b", "lost"), "c": part("c", "pending")}
    tables: dict[str, dict[str, Answer]] = {host: {"status": {"runs": [one]}} for host, one in parts.items()}
    tables["c"]["admit"] = {"over": False, **GIVEN}
    for host in "ab":
        tables[host]["rejoin"] = {"status": part(host, "starting")}
    for one in parts.values():
        one["agreed"]["attempts"][0]["hosts"] = ["a", "b"]
    found = merge_runs({host: [one] for host, one in parts.items()})[0]
    assert not found.terminal  # else `restart` would start another run
    nodes = DryFleet([DryTransport(host, table) for host, table in tables.items()])
    assert rejoin_all(nodes, found, lambda event: None) == ["a", "b"]


@pytest.mark.timeout(60)
def test_a_followed_host_is_read_on_once_it_takes_part() -> None:
    answers = iter(["lost", "lost", "succeeded"])
    told: list[Event] = []
    tail = DryTransport("c", {"tail": lambda _: Stream((), {"offset": 0, "state": next(answers)})})
    tries: Iterator[bool | ConnectError] = iter([True, *[ConnectError("nobody answers", host="c")] * 2, True])

    def back(host: str) -> bool:
        taken = next(tries)
        if isinstance(taken, ConnectError):
            raise taken
        return taken

    pauses: list[float] = []

    def wait(event: threading.Event, seconds: float) -> bool:
        pauses.append(seconds)
        return event.is_set()

    assert follow("run-1", ["c"], DryFleet([tail]), told.append, lambda groups: None, back=back, wait=wait) == {}
    assert pauses == [0.0, 2.0, 4.0, 8.0]
    again = "takes part in the run again; the next restart may use it"
    notes = [one.message for one in told if isinstance(one, Note)]
    assert notes == [again, "c: nobody answers; trying again", again]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "words"),
    [(CORRUPT, "cannot take part again: agreed.json is missing"), (NO_SUCH_RUN, "without its record of the run")],
)
def test_a_host_that_stays_out_says_why(kind: str, words: str) -> None:
    refused = RemoteError("agreed.json is missing", kind=kind, host="c")

    def back(host: str) -> bool:
        raise refused

    told: list[Event] = []
    lost: Answer = Stream([Frame({"state": "running"})], {"offset": 0, "state": "lost"})
    tail = DryTransport("c", {"tail": refused if kind == NO_SUCH_RUN else lost})
    errors = follow("run-1", ["c"], DryFleet([tail]), told.append, lambda groups: None, back=back)
    assert set(errors) == ({"c"} if kind == NO_SUCH_RUN else set())
    notes = [one for one in told if isinstance(one, Note)]
    assert [(note.host, note.level) for note in notes] == [("c", "warning")]
    assert words in notes[0].message
