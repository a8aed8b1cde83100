"""Faults of the product, put in on purpose: what the simulator must notice. The product itself is not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddpctl_worker.agent.lead import NEAR_S
from ddpctl_worker.agent.quorum import Voter
from tests.simulator.agents import AgentWorld, Profile
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


def _forgets(host: Host) -> None:
    host.disk.forgets = True


Broken = Callable[[int, Profile], AgentWorld]
FAULTS: dict[str, Broken] = {
    "no waiting for quiet": lambda seed, profile: AgentWorld(seed, profile, _votes_as(HastyVoter)),
    "a vote for an older paper": lambda seed, profile: AgentWorld(seed, profile, _votes_as(CarelessVoter)),
    "authority without the others": lambda seed, profile: AgentWorld(seed, profile, _votes_as(BoldVoter)),
    "what is not agreed on counts": lambda seed, profile: AgentWorld(seed, profile, _votes_as(SureVoter)),
    "nothing on disk": lambda seed, profile: AgentWorld(seed, profile, _forgets),
    "a lease that is ignored": LeaseForGood,
    "a lease that is not renewed": LeaseNotRenewed,
}
