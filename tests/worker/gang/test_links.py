"""Links between two nodes: when a link counts as cut."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.gang.cuts import Cuts
from ddpctl_worker.gang.cutwatch import hosts_that_answer, sockets_below, unique_addresses
from ddpctl_worker.gang.failures import FailureJudge
from ddpctl_worker.gang.limits import DIAL_S, FRESH_S, LATE_S, SETTLE_S, SUSPECT_S, UNACKED_S
from tests.worker.gang.test_failures import failure
from tests.worker.node import eventually

HOLDS = "import os, sys; print(os.fstat(0).st_ino, flush=True); sys.stdin.readline()"


@pytest.mark.slow
def test_only_sockets_of_processes_below_this_one_count() -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen([sys.executable, "-c", HOLDS], stdin=theirs.fileno(), stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        held, own = int(child.stdout.readline()), os.fstat(ours.fileno()).st_ino
        assert sockets_below({held, own}) == {held}
        ours.sendall(b"\n")


def test_an_address_that_several_nodes_have_says_nothing() -> None:
    known = {"node1": ["10.0.0.2", "172.17.0.1"], "node2": ["10.0.0.3", "172.17.0.1", "10.0.0.1"]}
    assert unique_addresses(["10.0.0.1"], known) == {"10.0.0.2": "node1", "10.0.0.3": "node2"}


@pytest.fixture
def full() -> Iterator[int]:
    """A port of this machine that gives no answer: its queue of new connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = int(listener.getsockname()[1])

        def silent() -> bool:
            sock = stack.enter_context(socket.socket())
            sock.settimeout(0.3)
            return sock.connect_ex(("127.0.0.1", port)) != 0

        eventually(silent, "the queue is full")
        yield port


@pytest.mark.slow
def test_an_accepted_and_a_refused_connection_are_answers_and_silence_is_none(full: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_one, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        ports = {"accepts": open_one.getsockname()[1], "refuses": bound.getsockname()[1], "silent": full}
        targets = {name: [("127.0.0.1", port)] for name, port in ports.items()}
        targets["one of two"] = [*targets["silent"], *targets["refuses"]]
        found: list[set[str]] = []
        asks = threading.Thread(target=lambda: found.append(hosts_that_answer(targets, 5.0)), daemon=True)
        asks.start()
        asks.join(60.0)  # the kernel alone would try for two minutes
    assert found == [{"accepts", "refuses", "one of two"}]


def test_answers_that_have_come_count_however_late_they_are_looked_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hosts_that_answer({"a": [("127.0.0.1", server.getsockname()[1])]}, 0.0) == {"a"}


# --- the verdict of the hub

HOSTS = ["hub", "a", "b", "c"]


def finding(to: str, seconds: float = 12.0, silent: bool = True) -> dict[str, Any]:
    return {"to": to, "silent": silent, "for": seconds, "end": ["10.0.0.1", 4000] if seconds else None}


class Run:
    """The judge of four nodes that beat every second; ``cut`` is known at 120."""

    def __init__(self) -> None:
        self.judge = FailureJudge(HOSTS, "hub")
        self.now = 90.0
        self.beat(30)

    def beat(self, seconds: float, *hosts: str) -> None:
        """All nodes, or these, are heard for so long."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            for host in hosts or HOSTS:
                self.judge.heard(host, self.now)

    def told(self, origin: str, *args: Any, **keys: Any) -> None:
        self.judge.cuts.report(origin, finding(*args, **keys), self.now)

    def cause(self) -> dict[str, Any] | None:
        self.judge.tick(self.now)
        self.beat(2)
        verdict = self.judge.tick(self.now)
        return verdict.cause if verdict else None


def test_two_nodes_that_do_not_answer_each_other_are_a_cut_link() -> None:
    run = Run()
    run.told("a", "b")
    assert run.judge.cuts.questions(run.now) == [("b", "a", ("10.0.0.1", 4000))]
    assert run.judge.cuts.questions(run.now + 1) == []  # once
    assert run.cause() is None
    run.told("b", "a", seconds=0.0)
    cause = run.cause()
    assert cause is not None
    assert (cause["host"], cause["peer"], cause["reason"]) == ("b", "a", "link_lost")
    assert cause["message"] == (
        "a and b cannot reach each other: data from a to b was not acknowledged for 14 s, and neither answered a new "
        "connection of the other; both still reach hub: check the switch, cable and firewall between them"
    )


def test_nodes_whose_ranks_never_met_are_a_cut_link_too() -> None:
    run = Run()
    run.judge.cuts.report("a", dict(finding("b"), opening=True), run.now)
    run.told("b", "a", seconds=0.0)
    cause = run.cause()
    assert cause is not None
    assert (cause["host"], cause["peer"], cause["reason"]) == ("b", "a", "link_lost")
    assert cause["message"].startswith(
        "a and b cannot reach each other: connections of ranks from a to b were not answered for 12 s, and neither"
    )


def test_the_node_with_most_links_cut_is_named() -> None:
    run = Run()
    run.told("a", "b")
    run.told("b", "a")
    run.told("c", "a")  # a has not reported the link to c yet
    assert run.cause() is None
    run.told("a", "c", seconds=0.0)
    cause = run.cause()
    assert cause is not None
    assert cause["host"] == "a"
    assert cause["message"].startswith("a and each of b, c cannot reach each other: data from ")


def test_a_link_to_the_hub_over_another_network_counts_too() -> None:
    run = Run()
    run.told("hub", "c")
    run.told("c", "hub", seconds=0.0)
    cause = run.cause()
    assert cause is not None
    assert cause["host"] == "c"
    assert "they still reach each other on the port where the nodes watch each other" in cause["message"]


def test_a_cut_is_older_than_the_failures_that_it_brings_about() -> None:
    run = Run()
    run.judge.report(failure("b"), 1.0, run.now)
    run.told("a", "b")
    run.told("b", "a")
    cause = run.cause()
    assert cause is not None
    assert cause["reason"] == "link_lost"


@pytest.mark.parametrize(
    "case",
    ["it answers", "not long enough", "old", "old answer", "an answer comes later", "asleep", "cut off", "gone"],
)
def test_what_is_no_cut(case: str) -> None:
    run = Run()
    if case == "asleep":  # for a while, within the time that the data waits
        run.beat(LATE_S + 2, "hub", "a", "c")
        run.beat(3)
    run.told("a", "b", seconds=UNACKED_S - 0.1 if case == "not long enough" else 12.0)
    if case == "old answer":
        run.beat(FRESH_S + 1)
        run.told("a", "b")
        run.judge.cuts.report("b", finding("a"), run.now - FRESH_S - 1)
    else:
        run.told("b", "a", seconds=0.0, silent=case != "it answers")
    if case == "an answer comes later":
        run.told("a", "b", seconds=0.0, silent=False)
    if case == "old":
        run.beat(FRESH_S + 1)
    if case == "cut off":
        run.beat(LATE_S + 2, "hub", "a", "c")
    if case == "gone":
        run.judge.closed("b", run.now)
        assert run.judge.tick(run.now) is None
        return
    assert run.judge.tick(run.now) is None
    assert not run.judge.undecided


def test_the_times_fit() -> None:
    """An end dials while it waits for the rest of UNACKED_S, and a finding lives until the other end has dialled."""
    assert SUSPECT_S + DIAL_S <= UNACKED_S
    assert DIAL_S < FRESH_S
    assert SETTLE_S <= FRESH_S


@given(
    st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.booleans(), st.floats(0, 30)), max_size=30)
)
def test_one_end_alone_never_makes_a_cut(told: list[tuple[str, str, bool, float]]) -> None:
    cuts = Cuts(HOSTS, "hub")
    for origin, to, silent, seconds in told:
        if HOSTS.index(origin) < HOSTS.index(to):
            cuts.report(origin, finding(to, seconds, silent), 100.0)
    assert cuts.decide(101.0, lambda host, since: True) is None


@pytest.mark.parametrize("message", [{}, {"to": "x"}, {"to": "a"}, {"to": None, "for": None}])
def test_odd_messages_are_passed_over(message: dict[str, Any]) -> None:
    cuts = Cuts(HOSTS, "hub")
    cuts.report("a", message, 100.0)
    assert cuts.questions(100.0) == []
    assert cuts.decide(100.0, lambda host, since: True) is None
