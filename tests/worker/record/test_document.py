"""The document of a run with restarts in its form for the disk and for other hosts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.agent.limits import MOST_ATTEMPTS
from ddpctl_worker.gang.limits import MAX_LINE
from ddpctl_worker.record.document import AgreedAttempt, CheckpointChoice, Document, Proposal, ResumePlan

MOST_HOSTS = 4096  # of an inventory
HOSTS = st.lists(st.sampled_from([f"node{number}" for number in range(20)]), unique=True).map(tuple)


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    attempts = tuple(
        AgreedAttempt(
            number, draw(HOSTS), 29500, 29600, "2026-01-01T00:00:00+00:00", set_aside=({"host": "a", "why": "b"},)
        )
        for number in range(draw(st.integers(1, 4)))
    )
    choice = draw(st.none() | st.just(CheckpointChoice("ab", ("step_1", "step_2"))))
    resume = draw(st.none() | st.builds(ResumePlan, st.integers(0, 9), HOSTS, st.just(choice)))
    return Proposal(2, 3, Document(attempts, True, 1, {"a": "b"}, None, resume))


@given(proposals())
def test_a_proposal_is_the_same_after_its_way(proposal: Proposal) -> None:
    assert Proposal.from_json(json.loads(json.dumps(proposal.to_json()))) == proposal


def test_the_largest_run_fits_into_a_message() -> None:
    """Long names, every attempt on record, a quarter of the hosts excluded one after the other."""
    hosts = [f"gpu-node-{number:04}.cluster-a" for number in range(MOST_HOSTS)]
    excluded = hosts[::4]
    why = "it lost its power, or its network; the other hosts did not hear it for 13.5 s"
    a_step = len(excluded) // MOST_ATTEMPTS
    attempts = []
    for number in range(MOST_ATTEMPTS):
        gone = set(excluded[: number * a_step])
        aside = tuple({"host": host, "why": why} for host in excluded[number * a_step : (number + 1) * a_step])
        used = tuple(host for host in hosts if host not in gone)
        attempts.append(AgreedAttempt(number, used, 29500, 29600, "2026-01-01T00:00:00+00:00", set_aside=aside))
    document = Document(tuple(attempts), True, 1, dict.fromkeys(excluded, why), None, ResumePlan(1, tuple(hosts)))
    assert len(json.dumps(Proposal(9, 9, document).to_json())) < MAX_LINE - 1024
