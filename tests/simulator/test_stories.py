"""What a host says and does that is cut off from the others, told by hand instead of by chance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulator.agents import AgentWorld, Profile

QUIET = {"delays": (0.002,), "losses": (0.0,), "lates": (0.0,), "mute": 0.0}


def story(hosts: int, seconds: float, fits: Callable[[AgentWorld], bool]) -> AgentWorld:
    """A run without any fault on so many hosts, the first one that ``fits``."""
    profile = Profile("story", (), seconds, sizes=(hosts,), **QUIET)  # type: ignore[arg-type]
    return next(world for world in (AgentWorld(seed, profile) for seed in range(200)) if fits(world))


def place(world: AgentWorld) -> tuple[int, int]:
    rules = world.run_record["restart"]
    return rules["nodes"], rules["least"]  # type: ignore[index]


@pytest.mark.slow
def test_a_host_that_is_cut_off_says_so_and_waits() -> None:
    world = story(3, 120.0, lambda world: place(world) == (2, 2))
    host, notes = world.hosts["n1"], []
    world.scheduler.at(10.0, lambda: world._cut(world._around("n1"), "n1 is cut off"))
    world.scheduler.at(70.0, lambda: notes.append(host.note))
    world.scheduler.at(70.1, world._heal)
    world.scheduler.at(110.0, lambda: notes.append(host.note))
    assert world.play() == []
    assert notes[0] is not None
    assert "does not reach a majority of the run's 3 hosts" in notes[0]
    assert notes[1] is None
    assert host.disk.exit is None
    assert [part.runs for part in host.parts.values()] == [False]
    assert [part.runs for part in world.hosts["n2"].parts.values()] == [True]


@pytest.mark.slow
def test_of_two_hosts_the_one_that_is_left_ends_the_run() -> None:
    world = story(2, 80.0, lambda world: place(world)[0] == 2)
    world.scheduler.at(10.0, lambda: world.hosts["n0"].lose_power(200.0))
    world.play()
    end = world.hosts["n1"].disk.exit
    assert end is not None
    assert end["state"] == "failed"
    assert "continue it with: ddpctl restart train" in end["cause"]["message"]


@pytest.mark.slow
def test_the_loss_of_a_spare_stops_nothing() -> None:
    """n2 has stepped in for n0 before; half of the hosts are left then."""
    world = story(4, 120.0, lambda world: place(world) == (2, 2))
    world.scheduler.at(10.0, lambda: world._cut(world._around("n0"), "n0 is cut off"))
    world.scheduler.at(60.0, lambda: world.hosts["n3"].lose_power(200.0))
    assert world.play() == []
    assert [number for host in world.hosts.values() for number, part in host.parts.items() if part.runs] == [2, 2]
