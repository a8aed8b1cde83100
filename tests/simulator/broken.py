"""Faults of the product, put in on purpose: what the simulator must notice. The product itself is not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ddpctl_worker.agent import ending, following, raft
from ddpctl_worker.agent.limits import NEAR_S
from ddpctl_worker.agent.state import Event, State
from ddpctl_worker.gang.council import Council
from ddpctl_worker.gang.hub import HubGang
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.record.document import CheckpointChoice, Document
from ddpctl_worker.record.outcome import Outcome
from tests.simulator.agents import AgentWorld, Profile
from tests.simulator.gangs import GangWorld
from tests.simulator.host import Host


def _quiet_at_once(own: State, host: str) -> float:
    """Does not wait until nothing runs any more on a host that it does not hear."""
    assert own.lead is not None
    return own.lead.since + NEAR_S


def _vote_for_an_older_proposal(own: State, host: str, question: Any, event: Event) -> Any:
    return _answer_vote(own, host, dict(question, have=(1 << 30, 0)), event)


def _vote_while_bound(own: State, host: str, question: Any, event: Event) -> Any:
    """Has heard the leader just now, and votes for another host all the same."""
    return _answer_vote(own if own.lead is not None else own._replace(heard=-1e9, promised=-1e9), host, question, event)


def _start_when_ready(own: State, part: Any, document: Document, now: float) -> Any:
    """Starts as soon as its part is ready, whatever the others do."""
    return _start(own, part, document._replace(go=part.number), now)


_answer_vote, _start = raft.answer_vote, following._start


class LeaseForGood(AgentWorld):
    """No supervisor ends its ranks with their lease."""

    leases_end = False


class LeaseNotRenewed(AgentWorld):
    """No agent hands on the lease that it has."""

    leases_are_renewed = False


class ManyChoices(AgentWorld):
    """Each host resumes from what it finds."""

    def restored(self, host: Host, number: int, choice: CheckpointChoice) -> None:
        super().restored(host, number, choice._replace(digest=choice.digest + host.name))


Patch = tuple[Any, str, Any]  # where, the name, and what is put there


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
    "an end without a majority": Fault((ending, "_patience", lambda own: 30.0)),
}


class ForgetfulCouncil(Council):
    """Never looks whether the last member is still there."""

    def _find_lost(self, now: float) -> None:
        *_, (host, seat) = self.seats.items()
        del self.seats[host]
        super()._find_lost(now)
        self.seats[host] = seat


class HastyCouncil(Council):
    """Takes the first word that it hears for the cause."""

    def _decide_at(self, now: float) -> float:
        return now


class SleepyCouncil(Council):
    """Holds it against the others that it did not hear them while it did not run itself."""

    def slept(self, seconds: float) -> None:
        pass


def _with(council: type[Council]) -> type[HubGang]:
    class Hub(HubGang):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._council = council(self.hosts, self.host)

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
    "the hub forgets a member": _gang(hub=_with(ForgetfulCouncil)),
    "the first word is the cause": _gang(hub=_with(HastyCouncil)),
    "its own sleep counts": _gang(hub=_with(SleepyCouncil)),
    "a member is deaf": _gang(member=DeafMember),
    "a member trusts the hub": _gang(member=TrustingMember),
    "a member reports nothing": _gang(member=SilentMember),
}
