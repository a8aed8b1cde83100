"""Situations that are written by hand instead of drawn by chance."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.agents import AgentWorld, Profile

QUIET = {"delays": (0.002,), "losses": (0.0,), "lates": (0.0,), "mute": 0.0, "resumes": 0.0}


class Story(AgentWorld):
    """A run on ``hosts`` hosts without any fault except the written faults. The first attempt has n1 and n2, and one
    host is enough for an attempt.
    """

    def __init__(self, seed: int, hosts: int, seconds: float, **more: object) -> None:
        profile = Profile("story", (), seconds, sizes=(hosts,), **{**QUIET, **more})  # type: ignore[arg-type]
        super().__init__(seed, profile)

    def first_hosts(self, names: list[str], nodes: int) -> tuple[str, ...]:  # type: ignore[override]
        self.rules = self.rules._replace(nodes=2, least=1)
        return (names[1], names[2])

    def when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """As soon as it is so: before any host has a message about it from another host."""

        def look() -> None:
            if condition():
                then()
            else:
                self.after(0.001, look)

        look()

    def runs(self, name: str, attempt: int) -> bool:
        ranks = self.hosts[name].ranks.get(attempt)
        return ranks is not None and ranks.runs

    def newest(self, name: str) -> tuple[int, bool]:
        """The newest attempt that a host knows, and whether it is live."""
        agent = self.hosts[name].agent
        assert agent is not None
        return agent.document.last.number, agent.document.live

    def apart(self, *sides: str) -> None:
        """The network in parts: "01 234" leaves n0 and n1 together."""
        part = {f"n{digit}": side for side in sides for digit in side}
        self.cut = {(a, b) for a in self.hosts for b in self.hosts if part[a] != part[b]}
        self.log(f"parts: {' '.join(sides)}")


class LeaderElectedAgain(Story):
    """n0 leads, hears that n1 runs nothing of attempt 2, and loses the lead. The attempt begins under another leader,
    and n1 is cut off with a lease. Then n0 leads again: attempt 3 must wait for n1, whatever n0 heard before."""

    def __init__(self, seed: int = 0, _: Profile | None = None) -> None:
        super().__init__(seed, 5, 70.0)
        self.mute = set(self.hosts)  # n1 learns of nothing, and only its lease ends its ranks
        self.chapters: list[str] = []
        self.after(3.0, self._fail_both)
        self.when(self._is_about_to_propose, self._cut_n1_off)
        self.when(lambda: self.newest("n0") == (2, False), self._leave_n0_with_n1)

    def first_hosts(self, names: list[str], nodes: int) -> tuple[str, ...]:  # type: ignore[override]
        super().first_hosts(names, nodes)
        return (names[1], names[4])  # the next leaders in the list, n2 and n3, have no part in it

    def _begin_chapter(self, text: str) -> None:
        self.chapters.append(text)
        self.log(text)

    def _fail_both(self) -> None:
        for name in ("n1", "n4"):
            self.hosts[name].ranks[1].fail()

    def _is_about_to_propose(self) -> bool:
        agent = self.hosts["n0"].agent
        assert agent is not None
        assert agent.lead is not None
        return agent.lead.search is not None and bool(agent.lead.search.hosts)

    def _cut_n1_off(self) -> None:
        self._begin_chapter("n0 proposes attempt 2, and n1 does not hear of it")
        self.apart("0234", "1")

    def _leave_n0_with_n1(self) -> None:
        self._begin_chapter("n1 is lost for n0, which ends attempt 2; no majority agrees")
        self.apart("01", "234")
        self.when(self._has_reported, self._let_another_lead)

    def _has_reported(self) -> bool:
        agent = self.hosts["n0"].agent
        assert agent is not None
        assert agent.lead is not None
        report = agent.lead.followers["n1"].report
        return report is not None and report.attempt == 2

    def _let_another_lead(self) -> None:
        self._begin_chapter("n1 has told n0 that it has no part in attempt 2")
        self.apart("0", "1", "234")
        self.when(lambda: self.hosts["n2"].leads or self.hosts["n3"].leads, self._let_n1_join)

    def _let_n1_join(self) -> None:
        self._begin_chapter("another host leads, and n1 hears first that attempt 2 is to begin")
        self.apart(*(("0", "12", "34") if self.hosts["n2"].leads else ("0", "13", "24")))
        self.when(lambda: self.newest("n1") == (2, True), self._let_attempt_begin)

    def _let_attempt_begin(self) -> None:
        self._begin_chapter("attempt 2 begins")
        self.heal()
        self.when(self._runs_under_another_leader, lambda: self.after(3.0, self._lose_leader))

    def _runs_under_another_leader(self) -> bool:
        leaders = {host.name for host in self.leaders()}
        return self.runs("n1", 2) and self.runs("n4", 2) and leaders <= {"n2", "n3"}

    def _lose_leader(self) -> None:
        self._begin_chapter("this leader is lost, n1 is cut off with its ranks, and a rank on n4 fails")
        (leader,) = self.leaders()
        leader.lose_power(500.0)
        self.apart("0234", "1")
        self.hosts["n4"].ranks[2].fail()
        self.when(lambda: self.hosts["n0"].leads, lambda: self._begin_chapter("n0 leads again"))
