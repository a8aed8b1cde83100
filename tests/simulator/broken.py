"""Faults of the product, put in on purpose: what the simulator must notice. The product itself is not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddpctl_worker.agent.lead import NEAR_S
from ddpctl_worker.agent.quorum import Voter
from ddpctl_worker.gang.council import Council
from ddpctl_worker.gang.hub import HubGang
from ddpctl_worker.gang.member import MemberGang
from ddpctl_worker.outcome import Outcome
from tests.simulator.agents import AgentWorld, Profile
from tests.simulator.gangs import GangWorld
from tests.simulator.host import Host


class HastyVoter(Voter):
    """Does not wait until nothing runs any more on a host that it does not hear."""

    def quiet_at(self, host: str) -> float:
        assert self._lead_since is not None
        return self._lead_since + NEAR_S


class CarelessVoter(Voter):
    """Votes for a host whose paper is older than its own."""

    def _answer_vote(self, request: dict[str, Any], now: float) -> dict[str, Any]:
        return super()._answer_vote(dict(request, have=(1 << 30, 0)), now)


class BoldVoter(Voter):
    """As the leader it needs nobody to hear it."""

    def authority(self, now: float) -> float:
        return now + 7.5


class SureVoter(Voter):
    """Takes every paper for everybody's."""

    @property
    def agreed(self) -> bool:
        return True


class LeaseForGood(AgentWorld):
    """No supervisor ends its ranks with their lease."""

    leases_end = False


class LeaseNotRenewed(AgentWorld):
    """No agent hands on the lease that it has."""

    leases_are_renewed = False


def _votes_as(kind: type[Voter]) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        host.agent._voter.__class__ = kind

    return change


Broken = Callable[[int, Profile], AgentWorld]
FAULTS: dict[str, Broken] = {
    "no waiting for quiet": lambda seed, profile: AgentWorld(seed, profile, _votes_as(HastyVoter)),
    "a vote for an older paper": lambda seed, profile: AgentWorld(seed, profile, _votes_as(CarelessVoter)),
    "authority without the others": lambda seed, profile: AgentWorld(seed, profile, _votes_as(BoldVoter)),
    "what is not agreed on counts": lambda seed, profile: AgentWorld(seed, profile, _votes_as(SureVoter)),
    "a lease that is ignored": LeaseForGood,
    "a lease that is not renewed": LeaseNotRenewed,
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
