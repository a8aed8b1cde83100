"""The decisions of the agents in situations that they once decided wrongly, written by hand."""

from __future__ import annotations

import pytest

from tests.simulator.broken import REPORTS_NOT_AGREED_ON, REPORTS_OF_ANY_TERM, Patch, patched
from tests.simulator.story import LeaderElectedAgain, Story


def test_an_attempt_begins_though_the_agent_of_its_first_host_is_gone() -> None:
    """It has chosen the checkpoint, and the other hosts wait for it."""
    world = Story(0, 4, 60.0, resumes=1.0)
    world.after(3.0, lambda: world.hosts["n2"].ranks[1].fail())
    world.when(lambda: world.newest("n1")[0] == 2, world.hosts["n1"].kill_agent)
    assert world.play() == [], "\n".join(world.trace)
    assert any(world.runs(name, number) for name in ("n0", "n2", "n3") for number in (2, 3, 4)), world.trace


def test_a_lease_is_handed_on_whoever_answers() -> None:
    """n1 looks around, since the leader has not answered twice. It answers then, and its lease counts."""
    world = Story(0, 3, 60.0)
    for second in (10.0, 20.0, 30.0):
        world.after(second, lambda: world.apart("0", "12"))
        world.after(second + 4.0, world.heal)
    assert world.play() == [], "\n".join(world.trace)
    assert world.runs("n1", 1)


def test_an_end_that_is_not_agreed_on_is_not_final() -> None:
    """n3 leads and proposes the end; only n4 gets the message."""
    world = Story(0, 5, 120.0)
    world.after(10.0, lambda: world.apart("04", "123"))
    world.after(40.0, world.heal)
    assert world.play() == [], "\n".join(world.trace)
    assert [host.disk.exit for host in world.hosts.values()] == [None] * 5


def test_a_host_that_is_cut_off_says_so_and_waits() -> None:
    world = Story(1, 3, 120.0)
    host, notes = world.hosts["n1"], []
    world.after(10.0, lambda: world.apart("02", "1"))
    world.after(70.0, lambda: notes.append(host.note))
    world.after(70.1, world.heal)
    world.after(110.0, lambda: notes.append(host.note))
    assert world.play() == []
    assert notes[0] is not None
    assert "does not reach a majority of the run's 3 hosts" in notes[0]
    assert notes[1] is None
    assert host.disk.exit is None
    assert world.runs("n2", 2)


def test_of_two_hosts_the_one_that_is_left_ends_the_run() -> None:
    class Two(Story):
        def first_hosts(self, names: list[str], nodes: int) -> tuple[str, ...]:  # type: ignore[override]
            self.rules = self.rules._replace(nodes=2, least=2)
            return tuple(names)

    world = Two(0, 2, 80.0)
    world.after(10.0, lambda: world.hosts["n0"].lose_power(200.0))
    world.play()
    end = world.hosts["n1"].disk.exit
    assert end is not None
    assert end["state"] == "failed"
    assert "continue it with: ddpctl restart train" in end["cause"]["message"]
    assert [told["event"] for told in world.hosts["n1"].told] == ["ended"]


def test_the_loss_of_a_spare_stops_nothing() -> None:
    """n0 has led and is cut off; n3, a spare, loses power."""
    world = Story(0, 4, 120.0)
    world.after(10.0, lambda: world.hosts["n3"].lose_power(200.0))
    assert world.play() == []
    assert world.runs("n1", 1)
    assert world.runs("n2", 1)


def test_a_leader_that_is_elected_again_believes_no_report_of_its_earlier_term() -> None:
    world = LeaderElectedAgain()
    assert world.play() == [], "\n".join(world.trace)
    assert world.chapters[-1] == "n0 leads again", "\n".join(world.trace)
    assert world.runs("n0", 3), "\n".join(world.trace)


@pytest.mark.parametrize("patches", [REPORTS_OF_ANY_TERM, REPORTS_NOT_AGREED_ON], ids=["any term", "not agreed on"])
def test_each_of_two_rules_about_reports_is_enough_for_that_leader(patches: tuple[Patch, ...]) -> None:
    with patched(*patches):
        world = LeaderElectedAgain()
        assert world.play() == [], "\n".join(world.trace)
    assert world.chapters[-1] == "n0 leads again"


def test_without_both_rules_about_reports_two_attempts_run_at_once() -> None:
    with patched(*REPORTS_OF_ANY_TERM, *REPORTS_NOT_AGREED_ON):
        world = LeaderElectedAgain()
        assert world.play()[0] == "two attempts run at once: {3: ['n0'], 2: ['n1']}", "\n".join(world.trace)


@pytest.mark.slow
def test_many_hosts_elect_a_leader_soon() -> None:
    """The first ten of 21, or twenty of 64, are lost at once."""
    for hosts, lost, seeds in ((21, 10, 2), (64, 20, 1)):
        waited = []
        for seed in range(seeds):
            world = Story(seed, hosts, 60.0)
            names = list(world.hosts)

            def lose(world: Story = world, names: list[str] = names[:lost]) -> None:
                for name in names:
                    world.hosts[name].lose_power(500.0)

            world.after(5.0, lose)
            world.run(5.1)
            while not world.leaders() and world.now < 60.0:
                world.run(world.now + 0.1)
            waited.append(world.now - 5.0)
        assert max(waited) < 25.0, waited
