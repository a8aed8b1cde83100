"""The next step after an attempt."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.agent import policy
from ddpctl_worker.agent.leading import convict, ends_of
from ddpctl_worker.agent.limits import MOST_PAUSE_S, STEADY_S
from ddpctl_worker.agent.policy import NextStep, Rules, choose, pause
from ddpctl_worker.agent.state import Report
from ddpctl_worker.record.document import AgreedAttempt

RULES = Rules(("a", "b", "c", "d"), nodes=3, least=3, restarts=2)
HOSTS = ["a", "b", "c"]
TRACE = 'Traceback (most recent call last):\n  File "train.py", line %d, in step\n%s: bad'


BEGUN = "2026-01-02T03:04:05+00:00"


def attempt(
    cause: dict[str, Any] | None = None, hosts: list[str] | None = None, number: int = 1, lasted: int = 5
) -> AgreedAttempt:
    ended = datetime.fromisoformat(BEGUN) + timedelta(seconds=lasted)
    return AgreedAttempt(number, tuple(hosts or HOSTS), 1, 2, BEGUN, ended.isoformat(), cause)


def after(rules: Rules, attempts: list[AgreedAttempt], ends: policy.Ends, near: list[str], aside: Any) -> NextStep:
    return policy.choose_next_step(rules, attempts, ends, near, aside, wall=0.0)


def hosts_after(step: NextStep, near: list[str], rules: Rules = RULES, before: list[str] = HOSTS) -> list[str]:
    """The hosts of the attempt that the leader proposes while these hosts answer, all connected."""
    assert step.over is None
    return choose(rules, before, [host for host in near if host not in step.unfit])


def cause(host: str, reason: str = "exited", message: str = "it failed", **more: Any) -> dict[str, Any]:
    return {"host": host, "rank": 0, "reason": reason, "message": message, "time": "2026-01-02T03:04:05Z", **more}


def end(state: str, why: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"state": state, "cause": why}


ENDS = [
    None,
    end("succeeded"),
    end("failed"),
    end("failed", cause("a")),
    end("failed", cause("b", "node_lost")),
    end("killed", cause("c", "killed_by_user")),
]


def test_all_succeed() -> None:
    step = after(RULES, [attempt()], {host: end("succeeded") for host in HOSTS}, list("abcd"), {})
    assert step.over == {"state": "succeeded", "cause": None}


def test_an_exception_sets_nobody_aside() -> None:
    why = cause("b", traceback=TRACE % (3, "ValueError"))
    step = after(RULES, [attempt()], {host: end("failed", why) for host in HOSTS}, list("abcd"), {})
    assert (hosts_after(step, list("abcd")), step.set_aside, step.cause) == (HOSTS, [], why)


def test_a_cut_between_two_hosts_is_the_cause_rather_than_a_host_that_was_waited_for() -> None:
    """The host that the other hosts miss has reported it itself: it lives, and a link is cut."""
    waited = {**cause("c", "rendezvous_timeout"), "time": "2026-01-02T03:04:04Z"}
    link = {**cause("c", "link_lost"), "peer": "a"}
    ends = {"a": end("failed", waited), "b": end("failed", waited), "c": end("failed", link)}
    assert policy.cause_of(ends, 0.0) == link
    crash = {**cause("b", "signaled"), "time": "2026-01-02T03:04:06Z"}
    assert policy.cause_of({**ends, "b": end("failed", crash)}, 0.0) == waited


@pytest.mark.parametrize("reason", ["oom", "disk_full", "signaled", "silence", "supervisor_lost"])
def test_what_says_nothing_against_a_host(reason: str) -> None:
    step = after(RULES, [attempt()], {host: end("failed", cause("b", reason)) for host in HOSTS}, list("abcd"), {})
    assert (hosts_after(step, list("abcd")), step.set_aside) == (HOSTS, [])


def test_a_spare_steps_in_for_a_lost_host() -> None:
    ends = {"a": None, "b": end("failed", cause("a", "node_lost")), "c": end("failed", cause("a", "node_lost"))}
    step = after(RULES, [attempt()], ends, ["b", "c", "d"], {})
    assert hosts_after(step, ["b", "c", "d"]) == ["b", "c", "d"]
    assert [one["host"] for one in step.set_aside] == ["a"]
    assert step.cause is not None
    assert step.cause["host"] == "a"


def test_who_was_cut_off_from_a_lost_host_is_not_the_cause() -> None:
    ends = {"a": None, "b": end("failed", cause("b", "node_lost")), "c": end("failed", cause("c", "node_lost"))}
    step = after(RULES, [attempt()], ends, ["b", "c", "d"], {})
    assert step.cause is not None
    assert (step.cause["host"], step.cause["reason"]) == ("a", "node_lost")


def test_without_a_spare_it_goes_on_with_fewer_where_that_is_allowed() -> None:
    ends = {"a": end("failed", cause("c", "node_lost")), "b": end("failed", cause("c", "node_lost")), "c": None}
    fewer = Rules(("a", "b", "c"), nodes=3, least=2, restarts=2)
    assert hosts_after(after(fewer, [attempt()], ends, ["a", "b"], {}), ["a", "b"], fewer) == ["a", "b"]
    step = after(fewer._replace(least=3), [attempt()], ends, ["a", "b"], {})
    assert step.over is None  # a silent host may answer again in a moment
    assert policy.too_few(fewer._replace(least=3), ["a", "b"]) == "it needs 3 hosts, and 2 can be used"


def test_a_host_that_answers_and_does_not_end_its_part_is_not_used_again() -> None:
    """Such a host could never begin the next attempt, and the other hosts would wait for it."""
    ends = {host: end("failed", cause("a")) for host in HOSTS}
    step = after(RULES, [attempt()], {**ends, "b": None}, list("abcd"), {})
    assert hosts_after(step, list("abcd")) == ["a", "c", "d"]
    assert list(step.unfit) == ["b"]


def test_a_host_whose_part_had_not_begun_when_the_attempt_was_called_off_is_used_again() -> None:
    """Host b was lost while the hosts got their checkpoints. Host a has ended its part, and host c never had a part."""
    why = cause("a", "spawn_failed")
    reports = {"a": Report(2, True, end=end("failed", why)), "b": Report(0, False), "c": Report(2, True)}
    ends = ends_of(attempt(number=2), reports, idle=["a", "c"])
    step = after(RULES, [attempt(), attempt(number=2)], ends, ["a", "c", "d"], {})
    assert (hosts_after(step, ["a", "c", "d"]), step.unfit) == (["a", "c", "d"], {})
    assert [one["host"] for one in step.set_aside] == ["b"]


def test_what_cannot_be_killed_sets_its_host_aside() -> None:
    """The next attempt must not run beside such a process."""
    ends = {host: end("failed", cause("b")) for host in HOSTS}
    step = after(RULES, [attempt()], {**ends, "b": {**ends["b"], "left": 2}}, list("abcd"), {})
    assert hosts_after(step, list("abcd")) == ["a", "c", "d"]
    assert step.unfit == {"b": "2 processes of the job there cannot be killed"}


def test_a_host_that_came_back_is_used_again() -> None:
    ends = {"a": end("failed", cause("b")), "b": end("failed", cause("b"))}
    rules = Rules(("a", "b", "c"), nodes=3, least=2, restarts=5)
    step = after(rules, [attempt(), attempt(hosts=["a", "b"])], ends, ["a", "b", "c"], {})
    assert hosts_after(step, ["a", "b", "c"], rules, ["a", "b"]) == ["a", "b", "c"]


def test_a_broken_gpu_sets_its_host_aside_for_good() -> None:
    why = cause("b", message="RuntimeError: CUDA error: uncorrectable ECC error encountered")
    step = after(RULES, [attempt()], {host: end("failed", why) for host in HOSTS}, list("abcd"), {})
    assert hosts_after(step, list("abcd")) == ["a", "c", "d"]
    assert list(step.unfit) == ["b"]
    again = after(RULES, [attempt()], {host: end("failed", cause("a")) for host in HOSTS}, list("acd"), step.unfit)
    assert list(again.unfit) == ["b"]


@pytest.mark.parametrize(
    ("line", "error", "ends"), [(3, "ValueError", True), (4, "ValueError", False), (3, "OSError", False)]
)
def test_the_same_exception_twice_in_a_row(line: int, error: str, ends: bool) -> None:
    before = attempt(cause("b", traceback=TRACE % (3, "ValueError")))
    now = cause("c", traceback=TRACE % (line, error))
    step = after(RULES, [before, attempt()], {host: end("failed", now) for host in HOSTS}, list("abcd"), {})
    assert (step.over is not None) == ends


def test_restarts_are_used_up() -> None:
    step = after(
        RULES,
        [attempt(), attempt(), attempt(number=3)],
        {host: end("failed", cause("a", "oom")) for host in HOSTS},
        list("abcd"),
        {},
    )
    assert step.over is not None
    assert "it was restarted 2 times before" in step.over["cause"]["message"]


@given(
    ends=st.fixed_dictionaries({host: st.sampled_from(ENDS) for host in HOSTS}),
    number=st.integers(1, 5),
    near=st.sets(st.sampled_from("abcd")),
)
def test_a_run_that_fails_has_a_cause(ends: dict[str, Any], number: int, near: set[str]) -> None:
    over = after(RULES, [attempt(number=number)], ends, sorted(near), {}).over
    if over is not None and over["state"] != "succeeded":
        assert over["cause"]["host"] in HOSTS
        assert over["cause"]["reason"]
        assert over["cause"]["message"]


def test_an_attempt_that_was_called_off_and_has_too_few_hosts_then() -> None:
    over = policy.find_given_up(None, policy.too_few(RULES, ["a"]), attempt(number=2), 0.0)
    assert over["cause"]["host"] == "a"
    assert over["cause"]["message"] == (
        "attempt 2 was stopped by ddpctl; not restarted: it needs 3 hosts, and 1 can be used"
    )


def test_a_kill_is_the_end() -> None:
    ends = {"a": end("killed", cause("a", "killed_by_user")), "b": end("failed", cause("b")), "c": None}
    step = after(RULES, [attempt()], ends, ["a", "b", "d"], {})
    assert step.over is not None
    assert step.over["state"] == "killed"


@given(
    hosts=st.integers(1, 8),
    nodes=st.integers(1, 8),
    before=st.sets(st.integers(0, 7)),
    usable=st.sets(st.integers(0, 7)),
)
def test_who_is_chosen(hosts: int, nodes: int, before: set[int], usable: set[int]) -> None:
    names = [f"n{i}" for i in range(hosts)]
    rules = Rules(names, nodes, 1, 1)
    fit = [name for i, name in enumerate(names) if i in usable]
    last = [name for i, name in enumerate(names) if i in before]
    chosen = choose(rules, last, fit)
    assert set(chosen) <= set(fit)
    assert len(chosen) == min(nodes, len(fit))
    assert chosen == sorted(chosen, key=names.index)
    if len(set(last) & set(fit)) >= nodes:
        assert set(chosen) <= set(last)


def test_pauses_grow_until_an_attempt_lasts() -> None:
    assert [pause([attempt()] * n) for n in (1, 2, 3, 4, 10)] == [1.0, 2.0, 4.0, 8.0, MOST_PAUSE_S]
    assert pause([attempt(), attempt(), attempt(lasted=int(STEADY_S))]) == 1.0


def _links(*pairs: str) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in pairs}


def test_one_cut_link_convicts_nobody() -> None:
    assert convict(list("abc"), _links("ab")) == {}


def test_a_host_that_fails_with_two_others_is_convicted() -> None:
    assert list(convict(list("abc"), _links("ab", "ac"))) == ["a"]
    assert list(convict(list("abcd"), _links("ab", "ac", "ad"))) == ["a"]


def test_a_host_without_any_connection_is_told_in_a_few_words() -> None:
    """Every host gets the order again with each change."""
    hosts = [f"n{i:02d}" for i in range(100)]
    found = convict(hosts, {frozenset(("n00", other)) for other in hosts[1:]})
    assert found == {
        "n00": "no connection between it and n01, n02, n03, n04, n05, n06, n07, n08 and 91 others",
    }


def test_of_two_hosts_without_a_connection_the_later_one_gives_way_to_a_spare() -> None:
    usable = policy.connected_hosts(RULES, HOSTS, list("abcd"), _links("ab"))
    assert choose(RULES, HOSTS, usable) == ["a", "c", "d"]
    assert policy.connected_hosts(RULES, HOSTS, list("abcd"), _links("ad")) == list("abcd"), "the spare is not needed"
    assert policy.connected_hosts(RULES, HOSTS, list("abc"), _links("ab")) == list("abc"), "there is no spare"


@given(
    cut=st.sets(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"])),
    least=st.integers(1, 3),
    usable=st.sets(st.sampled_from("abcd")),
)
def test_two_hosts_without_a_connection_are_used_together_only_where_the_run_needs_both(
    cut: set[str], least: int, usable: set[str]
) -> None:
    rules, links = RULES._replace(least=least), _links(*cut)
    left = policy.connected_hosts(rules, HOSTS, sorted(usable), links)
    chosen = choose(rules, HOSTS, left)
    assert set(left) <= usable
    assert all(any(host in pair for pair in links) for host in usable - set(left))
    assert (len(chosen) >= least) == (len(choose(rules, HOSTS, sorted(usable))) >= least)
    for pair in links:
        if pair <= set(chosen):
            without = [one for one in left if one != max(pair)]
            assert len(choose(rules, HOSTS, without)) < least


@given(st.sets(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"])))
def test_who_reaches_everybody_is_never_convicted(cut: set[str]) -> None:
    blamed = convict(list("abcd"), _links(*cut))
    for host in blamed:
        assert sum(host in pair for pair in cut) >= 2
