"""What the leading agent decides of hosts that end late, or not at all, and of the checkpoints of an attempt."""

from __future__ import annotations

from ddpctl_worker.agent import state as st
from ddpctl_worker.agent.limits import KILL_S, STUCK_S
from ddpctl_worker.agent.step import step
from ddpctl_worker.record.document import CheckpointChoice, Document, ResumePlan
from tests.worker.agreement import ENDED, agent, ask_leader, at, attempt, report, with_reports

GRACE_S = 120.0  # the job's


class Table:
    """Three agents without a network; n0 leads. n2 has failed in attempt 1, and n1 has not ended yet."""

    def __init__(self) -> None:
        document = Document((attempt(),), False, 1)
        self.now = 1000.0
        self.leader = agent("n0", now=self.now, document=document, grace=GRACE_S)
        self.others = {name: agent(name, now=self.now, document=document) for name in ("n1", "n2")}
        self.ended = {"n1": False, "n2": True}

    def second(self) -> None:
        self.now += 1.0
        for name, other in self.others.items():
            self.leader, other = ask_leader(self.leader, other, self.now)
            assert self.leader.lead is not None
            told = report(1, idle=self.ended[name], end=ENDED if self.ended[name] else None)
            known = self.leader.lead.followers[name]._replace(report=told)
            followers = {**self.leader.lead.followers, name: known}
            self.leader = self.leader._replace(lead=self.leader.lead._replace(followers=followers))
            self.others[name] = other
        self.leader, _ = step(self.leader, at(self.now, st.Looked(None, None)))

    @property
    def over(self) -> bool:
        return self.leader.document.last.ended is not None


def test_a_host_that_ends_within_the_jobs_grace_is_waited_for() -> None:
    table = Table()
    until = table.now + GRACE_S + STUCK_S
    while table.now < until:
        table.second()
        assert not table.over
    assert table.others["n1"].lease > table.now
    table.ended["n1"] = True
    table.second()
    table.second()
    assert table.over
    assert table.leader.document.set_aside == {}


def test_a_host_that_is_stuck_loses_its_lease_before_the_others_go_on() -> None:
    table = Table()
    until = table.now + GRACE_S + STUCK_S + 60.0
    while not table.over and table.now < until:
        table.second()
    assert table.over
    assert list(table.leader.document.set_aside) == ["n1"]
    assert table.now > table.others["n1"].lease + KILL_S
    assert table.others["n2"].lease > table.now


def prepare(**reports: st.Report) -> st.State:
    """The leader of attempt 2 on n0 and n1, beside the spare n2, after a turn, and all hosts know of the attempt."""
    document = Document((attempt(1, "n0 n1", ended="2026-01-02T03:05:05+00:00"), attempt(2, "n0 n1")), True, 1)
    leader = agent("n0", document=document, resumes=True)
    leader, actions = step(with_reports(leader, 101.0, reports), at(101.0, st.Looked(None, None)))
    assert st.Collect(2, ("n0", "n1")) in actions
    return leader


def see(leader: st.State, own: st.PartProgress, **reports: st.Report) -> tuple[st.State, st.Actions]:
    return step(with_reports(leader, 102.0, reports), at(102.0, st.Looked(None, own)))


def test_the_checkpoints_of_a_spare_count_where_every_host_of_the_attempt_reaches_it() -> None:
    for reaches, sources in ((("n2",), ("n0", "n1", "n2")), ((), ("n0", "n1"))):
        told = {"n1": report(2, reaches=reaches), "n2": report(2, idle=True)}
        leader, _ = see(prepare(**told), st.PartProgress(2, reaches=("n2",)), **told)
        assert leader.document.resume == ResumePlan(2, sources)


def test_every_host_waits_until_the_choice_was_agreed_on() -> None:
    told = {"n1": report(2, reaches=()), "n2": report(2, idle=True)}
    own, choice = st.PartProgress(2, reaches=()), CheckpointChoice("ab12", ("step_4",))
    leader, _ = see(prepare(**told), own, **told)
    leader, actions = see(leader, own, **told)
    assert st.Choose(2, ("n0", "n1"), ("n0", "n1")) in actions
    leader, actions = see(leader, own._replace(choice=choice), **told)
    assert leader.document.resume == ResumePlan(2, ("n0", "n1"), choice)
    assert not any(isinstance(action, st.RestorePart) for action in actions)
    leader, actions = see(leader, own._replace(choice=choice), **told)
    assert st.RestorePart(2, ("n0", "n1"), choice) in actions


def test_a_choice_that_was_made_is_not_made_again() -> None:
    """A later choice is ignored: another host may have chosen in its turn, or an answer may have come late."""
    told = {"n1": report(2, reaches=()), "n2": report(2, idle=True)}
    own = st.PartProgress(2, reaches=())
    leader, _ = see(prepare(**told), own, **told)
    for digest in ("first", "second", "third"):
        leader, _ = see(leader, own._replace(choice=CheckpointChoice(digest, ())), **told)
    assert leader.document.resume == ResumePlan(2, ("n0", "n1"), CheckpointChoice("first", ()))


def test_a_step_whose_proposal_cannot_be_saved_has_not_happened() -> None:
    """The state before the step still counts: ``step`` does not change its arguments."""
    told = {"n1": report(2, reaches=()), "n2": report(2, idle=True)}
    leader = prepare(**told)
    before = with_reports(leader, 102.0, told)
    after, actions = step(before, at(102.0, st.Looked(None, st.PartProgress(2, reaches=()))))
    assert isinstance(actions[0], st.Save)
    assert before.document.resume is None
    again, _ = step(before, at(102.2, st.Looked(None, st.PartProgress(2, reaches=()))))
    assert again.document == after.document
