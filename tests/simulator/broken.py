"""Faults of the product, put in on purpose: what the simulator must notice. The product itself is not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ddpctl_worker.agent import ending, following, leading, raft
from ddpctl_worker.agent.limits import REACHABLE_S
from ddpctl_worker.agent.state import Config, Event, Report, State
from ddpctl_worker.gang.failures import FailureJudge
from ddpctl_worker.gang.hub import HubGang
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.record.document import Ballot, CheckpointChoice, Document
from ddpctl_worker.record.outcome import Outcome
from tests.simulator.agents import AgentWorld, Profile
from tests.simulator.gangs import GangWorld
from tests.simulator.host import Host
from tests.simulator.story import LeaderElectedAgain

Patch = tuple[Any, str, Any]  # where, the name, and what is put there


def _quiet_at_once(own: State, host: str) -> float:
    """Does not wait until nothing runs any more on a host that it does not hear."""
    assert own.lead is not None
    return own.lead.since + REACHABLE_S


def _vote_for_an_older_proposal(own: State, host: str, question: Any, event: Event) -> Any:
    return _answer_vote(own, host, dict(question, have=(1 << 30, 0)), event)


def _vote_while_bound(own: State, host: str, question: Any, event: Event) -> Any:
    """Has heard the leader just now, and votes for another host all the same."""
    return _answer_vote(own if own.lead is not None else own._replace(heard=-1e9, promised=-1e9), host, question, event)


def _start_when_ready(own: State, part: Any, document: Document, now: float) -> Any:
    """Starts as soon as its part is ready, whatever the other hosts do."""
    return _start(own, part, document._replace(go=part.number), now)


def _forget_what_other_runs_told(config: Config, ballot: Ballot, now: float) -> State:
    """Begins with an empty memory: the next simulated run has hosts of the same names."""
    _told.pop(config.host, None)
    return _first_state(config, ballot, now)


def _keep_reports(own: State, host: str, question: Any, event: Event) -> Any:
    """Remembers every report for all terms, not only for its own term."""
    own, answer = _answer_poll(own, host, question, event)
    if own.lead is not None:
        _told.setdefault(own.host, {})[host] = Report.from_json(question["report"])
    return own, answer


def _believe_reports_of_any_term(own: State) -> dict[str, Report]:
    """Takes for the report of a host its last report to this host, of any term."""
    return {**_reports(own), **_told.get(own.host, {})}


def _report_what_may_be_rolled_back(own: State) -> Report:
    """Forgets an attempt as soon as any leader has said that it is over."""
    return _report(own._replace(committed=own.ballot.proposal.mark))


_answer_vote, _answer_poll, _first_state = raft.answer_vote, raft.answer_poll, raft.first_state
_start, _reports = following._start, leading._reports
_report: Callable[[State], Report] = State.report.fget  # type: ignore[attr-defined]
_told: dict[str, dict[str, Report]] = {}  # the reports to each host's agent, by the host that reported
REPORTS_OF_ANY_TERM: tuple[Patch, ...] = (
    (raft, "answer_poll", _keep_reports),
    (leading, "_reports", _believe_reports_of_any_term),
    (raft, "first_state", _forget_what_other_runs_told),
)
REPORTS_NOT_AGREED_ON: tuple[Patch, ...] = ((State, "report", property(_report_what_may_be_rolled_back)),)


class LeaseForGood(AgentWorld):
    """No supervisor ends its ranks with their lease."""

    leases_end = False


class LeaseNotRenewed(AgentWorld):
    """No agent hands on the lease that it has."""

    leases_are_renewed = False


class ManyChoices(AgentWorld):
    """Each host resumes from the checkpoint that it finds."""

    def restored(self, host: Host, number: int, choice: CheckpointChoice) -> None:
        super().restored(host, number, choice._replace(digest=choice.digest + host.name))


@contextlib.contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """With this in place of the product's own."""
    with contextlib.ExitStack() as stack:
        for where, name, what in patches:
            stack.enter_context(mock.patch.object(where, name, what))
        yield


class Fault:
    """``patches`` of the product, or a ``world`` that stands for them."""

    def __init__(self, *patches: Patch, world: type[AgentWorld] = AgentWorld) -> None:
        self.patches, self._world = patches, world

    def play(self, seed: int, profile: Profile) -> list[str]:
        """The violations under that seed."""
        with patched(*self.patches):
            return self._world(seed, profile).play()


FAULTS: dict[str, Fault] = {
    "no waiting for quiet": Fault((raft, "quiet_at", _quiet_at_once)),
    "a vote for an older proposal": Fault((raft, "answer_vote", _vote_for_an_older_proposal)),
    "a vote while bound": Fault((raft, "answer_vote", _vote_while_bound)),
    "authority without the others": Fault((raft, "authority", lambda own, now: now + 7.5)),
    "what is not agreed on counts": Fault((State, "agreed", property(lambda own: True))),
    "the leader's word to go is not waited for": Fault((following, "_start", _start_when_ready)),
    "a lease that is ignored": Fault(world=LeaseForGood),
    "a lease that is not renewed": Fault(world=LeaseNotRenewed),
    "each host chooses its checkpoint": Fault(world=ManyChoices),
    # Both rules are broken: with a single rule left, an old report in this story is either true or forgotten.
    "reports outlive their term": Fault(*REPORTS_OF_ANY_TERM, *REPORTS_NOT_AGREED_ON, world=LeaderElectedAgain),
    "an end without a majority": Fault((ending, "_patience", lambda own: 30.0)),
}


class ForgetfulJudge(FailureJudge):
    """Never looks whether the last member is still there."""

    def _find_lost(self, now: float) -> None:
        *_, (host, node) = self.nodes.items()
        del self.nodes[host]
        super()._find_lost(now)
        self.nodes[host] = node


class HastyJudge(FailureJudge):
    """Takes the first word that it hears for the cause."""

    def _decide_at(self, now: float) -> float:
        return now


class SleepyJudge(FailureJudge):
    """Blames the other hosts for silence during a time in which it did not run itself."""

    def slept(self, seconds: float) -> None:
        pass


def _with(judge: type[FailureJudge]) -> type[HubGang]:
    class Hub(HubGang):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._judge = judge(self.hosts, self.host)

    return Hub


class DeafMember(MemberGang):
    """Does not hear the verdict."""

    def _decided(self, verdict: Outcome) -> None:
        if verdict.cause is not None and verdict.cause["host"] == self.hub_host:
            super()._decided(verdict)


class TrustingMember(MemberGang):
    """Never misses the hub."""

    def _miss_hub(self, now: float) -> None:
        pass


class SilentMember(MemberGang):
    """Reports no failure."""

    def _report(self, now: float) -> None:
        self._unsaid.clear()


def _gang(hub: type[HubGang] = HubGang, member: type[MemberGang] = MemberGang) -> Callable[[int], GangWorld]:
    def make(seed: int) -> GangWorld:
        world = GangWorld(seed)
        world.hub_kind, world.member_kind = hub, member
        return world

    return make


GANG_FAULTS: dict[str, Callable[[int], GangWorld]] = {
    "the hub forgets a member": _gang(hub=_with(ForgetfulJudge)),
    "the first word is the cause": _gang(hub=_with(HastyJudge)),
    "its own sleep counts": _gang(hub=_with(SleepyJudge)),
    "a member is deaf": _gang(member=DeafMember),
    "a member trusts the hub": _gang(member=TrustingMember),
    "a member reports nothing": _gang(member=SilentMember),
}
