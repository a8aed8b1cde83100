"""The plan of the campaign."""

from __future__ import annotations

from tests.restarts.plan import CARRIES, CUTS, KINDS, plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(3, 40) == plan(3, 40)
    assert plan(3, 40)[:26] == plan(3, 26)
    assert plan(3, 40) != plan(4, 40)
    assert {one.kind for one in plan(3, len(KINDS))} == set(KINDS)


def test_a_plan_of_some_kinds_has_no_others() -> None:
    assert [one.kind for one in plan(1, 3, ["oom", "pair"])] == ["oom", "pair", "oom"]


def test_every_round_does_something_to_hosts_that_are_there() -> None:
    for one in plan(1, 300):
        assert {one.victim, *one.accused, *(name for pair in one.drops for name in pair)} <= set(one.hosts)
        assert all(host != other for host, other in one.drops)
        assert bool(one.drops) == (one.kind in CUTS)
        assert (one.seconds is None) == (one.kind == "dead-link" or not one.drops)


def test_who_may_be_set_aside_is_who_was_hurt() -> None:
    for one in plan(2, 300):
        cut_off = {name for pair in one.drops for name in pair}
        if one.kind in ("power-worker", "power-master", "elastic"):
            assert one.accused == {one.victim}
            assert one.fate == CARRIES
        elif one.kind == "halves":
            assert len(one.accused) == 1 or one.accused == set(one.hosts)
        else:
            assert one.accused <= cut_off


def test_the_master_and_the_workers_are_kinds_of_their_own() -> None:
    rounds = plan(5, 200, ["power-master", "power-worker"])
    assert {one.victim for one in rounds if one.kind == "power-master"} == {"node0"}
    assert "node0" not in {one.victim for one in rounds if one.kind == "power-worker"}
    assert all(one.alone for one in rounds)
