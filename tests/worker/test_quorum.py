"""The agents of a run agree, whatever the network does (world.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpctl_worker.agent.quorum import GRACE_S, KILL_S, Voter
from tests.worker.world import World


def test_an_attempt_begins_on_all_hosts() -> None:
    world = World(1, 4, 3)
    world.run(5.0)
    assert [host.runs is not None for host in world.hosts.values()] == [True, True, True, False]


@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_any_host_leads_to_an_attempt_without_it(victim: str, seed: int) -> None:
    world = World(seed, 4, 3)
    world.run(20.0)
    world.kill(victim)
    world.run(60.0)
    runs = {name for name, host in world.hosts.items() if host.alive and host.runs is not None and host.runs[0] == 1}
    assert runs == set(world.names) - {victim}


@pytest.mark.parametrize("seed", range(3))
def test_a_spare_that_is_lost_stops_nothing(seed: int) -> None:
    world = World(seed, 4, 3)
    world.run(20.0)
    world.kill("n3")
    world.run(120.0)
    assert world.running() == {0}
    assert not any(host.ended for host in world.hosts.values())


@pytest.mark.parametrize("seed", range(5))
def test_half_of_the_hosts_that_run_everything_continue(seed: int) -> None:
    """Nobody else can have a majority then."""
    world = World(seed, 4, 2)
    world.run(20.0)
    world.kill("n2")
    world.kill("n3")
    world.run(120.0)
    assert world.running() == {0}


@pytest.mark.parametrize("seed", range(5))
def test_without_a_majority_nothing_begins(seed: int) -> None:
    world = World(seed, 3, 2)
    world.run(20.0)
    world.kill("n1")
    world.kill("n2")
    world.run(120.0)
    assert world.running() == set()
    assert len(world.attempts) == 1


def test_a_lease_outlives_an_election() -> None:
    """The loss of a leader whose host runs nothing (its agent was killed) stops no job that does not need it."""
    for seed in range(10):
        world = World(seed, 5, 3)
        world.run(20.0)
        for host in world.hosts.values():
            host.voter.paper = host.voter.paper._replace(
                value={"attempt": 0, "hosts": ["n1", "n2", "n3"], "live": True}
            )
        world.run(21.0)
        world.kill("n0")
        world.run(60.0)
        assert world.running() == {0}, seed
        assert not world.hosts["n1"].ended


def test_hosts_that_come_back_follow_again() -> None:
    world = World(3, 3, 2)
    world.run(20.0)
    world.cut = {("n0", "n1"), ("n0", "n2"), ("n1", "n0"), ("n2", "n0")}
    world.run(80.0)
    assert world.running() == {1}
    world.cut = set()
    world.run(100.0)
    papers = {host.voter.paper.mark for host in world.hosts.values()}
    assert len(papers) == 1
    assert sum(host.voter.leads for host in world.hosts.values()) == 1


@pytest.mark.parametrize("victim", ["n0", "n1"])
@pytest.mark.parametrize("lose", [World.kill, World.lose_agent])
@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_was_started_again_is_counted_again(seed: int, lose: Callable[..., None], victim: str) -> None:
    """The next loss is survived with it, the leader's too."""
    world = World(seed, 3, 2)
    world.run(20.0)
    lose(world, victim)
    world.run(60.0)
    assert world.running() == {1}
    world.start_again(victim)
    world.run(80.0)
    assert not world.hosts[victim].voter.leads
    world.kill(next(name for name in world.names if world.hosts[name].voter.leads))
    world.run(140.0)
    assert world.running() == {2}
    assert victim in world.attempts[-1][1]


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_is_started_again_at_once_waits_for_an_election(seed: int) -> None:
    """What it had granted before is not known to it any more."""
    world = World(seed, 3, 2)
    world.run(20.0)
    world.lose_agent("n0")
    world.start_again("n0")
    world.run(world.now + 120.0)
    assert len(world.running()) == 1


WHAT = ["cut", "heal", "kill", "agent", "again", "again", "pair", "oneway"]
cuts = st.tuples(st.floats(0.5, 40.0), st.sampled_from(WHAT), st.integers(0, 30))


worlds: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 1 << 30),
    "size": st.integers(1, 6),
    "part": st.integers(1, 6),
    "late": st.sampled_from([0.01, 0.5, 3.0]),
    "loss": st.sampled_from([0.0, 0.1]),
    "poll": st.sampled_from([0.05, 1.0]),
    "events": st.lists(cuts, max_size=6),
}


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(**worlds)
def test_never_two_attempts_at_once(
    seed: int, size: int, part: int, late: float, loss: float, poll: float, events: list[tuple[float, str, int]]
) -> None:
    _never_two(World(seed, size, min(size, part), late, loss, poll), events)


@pytest.mark.full(covered_by="tests/worker/test_quorum.py::test_never_two_attempts_at_once")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(**worlds)
def test_never_two_attempts_at_once_in_many_worlds(
    seed: int, size: int, part: int, late: float, loss: float, poll: float, events: list[tuple[float, str, int]]
) -> None:
    _never_two(World(seed, size, min(size, part), late, loss, poll), events)


def _never_two(world: World, events: list[tuple[float, str, int]]) -> None:
    """The world itself looks, after everything that happens."""
    world.run(10.0)
    for wait, what, number in events:
        _happen(world, what, number)
        world.run(world.now + wait)
    world.run(world.now + 60.0)


def _cut_and_heal(seed: int, oneway: bool) -> None:
    """Two sides that cannot talk, and talk again: at most one of them runs anything, and in the end one does."""
    choose = random.Random(seed)
    size = choose.choice([3, 4, 5])
    world = World(seed, size, choose.choice([1, 2, size - 1]), late=0.05, poll=0.05)
    for _ in range(3):
        world.run(world.now + choose.uniform(5.0, 20.0))
        side = set(choose.sample(world.names, choose.randint(1, size - 1)))
        world.cut = {(a, b) for a in side for b in world.names if b not in side}
        world.cut |= set() if oneway else {(b, a) for a, b in world.cut}
        world.run(world.now + choose.uniform(1.0, 40.0))
        world.cut = set()
    world.run(world.now + 60.0)
    assert len(world.running()) == 1, (seed, oneway)


def test_a_cut_network_runs_one_attempt() -> None:
    for seed in (0, 1):
        _cut_and_heal(seed, oneway=bool(seed))


@pytest.mark.full(covered_by="tests/worker/test_quorum.py::test_a_cut_network_runs_one_attempt")
def test_a_cut_network_runs_one_attempt_under_many_seeds() -> None:
    for seed in range(2, 100):
        _cut_and_heal(seed, oneway=bool(seed % 2))


def _happen(world: World, what: str, number: int) -> None:
    names = world.names
    a, b = names[number % len(names)], names[number // len(names) % len(names)]
    if what == "heal":
        world.cut = set()
    elif what == "kill":
        world.kill(a)
    elif what == "agent" and world.hosts[a].alive:
        world.lose_agent(a)
    elif what == "again":
        for name in names if number % 2 else [a]:
            world.start_again(name)
    elif what == "pair":
        world.cut |= {(a, b), (b, a)}
    elif what == "oneway":
        world.cut |= {(a, other) for other in names}
    elif what == "cut":
        side = {name for i, name in enumerate(names) if number >> i & 1}
        world.cut |= {(x, y) for x in names for y in names if (x in side) != (y in side)}


def test_the_numbers_fit() -> None:
    assert GRACE_S + KILL_S < 10


def _voter(host: str, size: int = 3, now: float = 100.0) -> Voter:
    names = [f"n{i}" for i in range(size)]
    voter = Voter(host, names, Voter.first("n0", {"attempt": 0}), now)
    voter.begin(now)
    return voter


def _poll(leader: Voter, follower: Voter, now: float) -> None:
    follower.told(leader.answer(follower.poll(), now), now, now)


def test_who_heard_the_leader_votes_for_nobody_else() -> None:
    leader, voter = _voter("n0"), _voter("n1")
    _poll(leader, voter, 200.0)
    request = {"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}
    assert not voter.answer(request, 207.9)["granted"]
    assert voter.answer(request, 208.1)["granted"]
    assert not voter.answer({**request, "host": "n0"}, 220.0)["granted"]  # one vote a term


def test_a_leader_with_authority_votes_for_nobody() -> None:
    leader, voter = _voter("n0"), _voter("n1")
    for now in (200.0, 201.0):
        _poll(leader, voter, now)
    request = {"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}
    assert leader.authority(201.0) == 207.5
    assert not leader.answer(request, 207.0)["granted"]
    assert leader.leads
    assert leader.answer(request, 207.6)["granted"]
    assert not leader.leads


def test_who_lacks_what_a_voter_has_is_not_elected() -> None:
    leader, voter = _voter("n0"), _voter("n1")
    leader.write({"attempt": 1})
    _poll(leader, voter, 200.0)
    assert not voter.answer({"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}, 220.0)["granted"]
    assert voter.answer({"k": "vote", "host": "n2", "term": 2, "have": (1, 2)}, 220.0)["granted"]


def test_only_the_leader_says_who_leads() -> None:
    """Those that have not yet missed one that is lost would name it to each other for ever."""
    leader, one, two = (_voter(name) for name in ("n0", "n1", "n2"))
    for voter in (one, two):
        _poll(leader, voter, 200.0)
    two.lost_leader()
    two.told(one.answer(two.poll(), 205.0), 205.0, 205.0)
    assert two.leader is None


def test_a_paper_counts_once_a_majority_has_it() -> None:
    leader, one, two, three = (_voter(name, 5) for name in ("n0", "n1", "n2", "n3"))
    leader.write({"attempt": 1})
    for number, voter in enumerate((one, two)):
        _poll(leader, voter, 200.0)
        assert not leader.agreed
        _poll(leader, voter, 201.0 + number)
    assert leader.agreed
    assert not one.agreed
    assert not three.agreed
    _poll(leader, one, 203.0)
    assert one.agreed


def test_a_lease_needs_the_leaders_newest_paper() -> None:
    """What it allows is in there."""
    leader, voter = _voter("n0"), _voter("n1")
    for now in (200.0, 201.0):
        _poll(leader, voter, now)
    assert voter.lease == 201.0 + 6.5 + GRACE_S
    assert leader.quiet_at("n1") == 207.5 + GRACE_S + KILL_S
    assert leader.quiet_at("n2") == 100.0 + GRACE_S + KILL_S


def test_what_was_promised_survives_a_restart() -> None:
    leader, voter = _voter("n0"), _voter("n1")
    _poll(leader, voter, 200.0)
    assert voter.answer({"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}, 210.0)["granted"]
    assert voter.unsaved
    again = Voter("n1", voter.hosts, voter.durable(), 211.0)
    assert not again.answer({"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}, 212.0)["granted"]
    assert not again.answer({"k": "vote", "host": "n0", "term": 2, "have": (1, 1)}, 230.0)["granted"]
    assert again.answer({"k": "vote", "host": "n2", "term": 2, "have": (1, 1)}, 230.0)["granted"]


def test_a_leader_that_steps_down_keeps_what_it_promised() -> None:
    """n1 runs on its word, and must not be forgotten because n2 stands for a later term."""
    leader, voter = _voter("n0"), _voter("n1")
    for now in (200.0, 201.0):
        _poll(leader, voter, now)
    leader.told({"term": 5}, 202.0, 202.0)
    assert not leader.leads
    request = {"k": "vote", "host": "n2", "term": 6, "have": (1, 1)}
    assert not leader.answer(request, 207.0)["granted"]
    assert leader.answer(request, 207.6)["granted"]


def test_a_leader_that_steps_down_waits_until_its_own_word_has_run_out() -> None:
    """It forgets whom it has given a lease when it is elected again, so none of these may outlast what it takes on."""
    leader, one, two = (_voter(name) for name in ("n0", "n1", "n2"))
    for now in (101.0, 101.5):
        _poll(leader, one, now)
    request = two.stand(110.0)  # n0 is cut off; n1 would vote for n2
    assert request is not None
    vote = two.counted("n1", request, one.answer(request, 110.0), 110.0)
    assert vote is not None  # which is lost on its way to n1
    for now in (110.1, 110.2):
        _poll(leader, one, now)  # n0 is back
    assert one.lease == 110.1 + 7.5 + GRACE_S
    leader.answer(two.poll(), 110.3)  # n2 is in a later term
    assert not leader.leads
    assert leader.stand(117.5) is None
    request = leader.stand(118.2)
    assert request is not None
    vote = leader.counted("n2", request, two.answer(request, 118.2), 118.2)
    assert vote is not None
    leader.counted("n2", vote, two.answer(vote, 118.2), 118.2)
    assert leader.leads
    assert leader.quiet_at("n1") >= one.lease + KILL_S
