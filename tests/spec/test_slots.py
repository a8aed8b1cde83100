"""The holders of slots in words, and the runs of other accounts, from what a host shows of their claims."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ddpctl.spec.runs import runs_document
from ddpctl.spec.slots import Claim, HostSlots, SlotLimit, describe_holders, fold_numbers, other_runs
from tests.values import value_of

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=timezone.utc)


def claim(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "run": "r1",
        "job": "resnet",
        "cluster": "lab",
        "project": "exp1",
        "host": "node3",
        "hosts": ["node3"],
        "account": "alice",
        "mine": False,
        "origin": {"account": "alice", "machine": "desk", "folder": "/home/alice/exp1"},
        "age_s": 7300.0,
        "slots": [0, 1, 2, 3],
        "want": 4,
        "place": None,
    }
    return {**made, **changes}


def test_each_holder_has_a_line_and_the_line_of_waiting_runs_follows() -> None:
    bob = claim(run="r2", job="bert", account="train", slots=[], want=8, place=2, age_s=30.0)
    bob["origin"] = {"account": "bob", "machine": "lap", "folder": "/data/x"}
    found = {
        "gpus": True,
        "claims": [bob, claim(), claim(run="r3", slots=[], want=1, place=1, age_s=90000.0)],
        "holders": [
            {"slots": [], "claim": 0, "foreign": None},
            {"slots": [0, 1, 2, 3], "claim": 1, "foreign": None},
            {"slots": [], "claim": 2, "foreign": None},
            {"slots": [5], "claim": None, "foreign": {"pid": 9, "account": "eve", "command": "python x.py"}},
            {"slots": [6], "claim": None, "foreign": {"pid": 8, "account": None, "command": "python"}},
            {"slots": [7], "claim": 17, "foreign": None},
        ],
    }
    assert describe_holders(value_of(HostSlots, found)) == [
        "GPUs 0-3: alice, run resnet (since 2 h, from desk:~/exp1)",
        "GPU 5: eve, python x.py (pid 9, not started by ddpctl)",
        "GPU 6: of another container or user, python (pid 8, not started by ddpctl)",
        "waiting for 1 GPU: alice, run resnet (since 1 d, from desk:~/exp1)",
        "waiting for 8 GPUs: train, run bert (since 30 s, from bob@lap:/data/x)",
    ]


def test_the_limit_of_an_account_is_named_as_the_reason() -> None:
    found = HostSlots(gpus=True, limited=SlotLimit(limit=4, held=3))
    assert describe_holders(found) == ["an account may hold 4 GPUs here (/etc/ddpctl.conf), and yours has 3"]


@pytest.mark.parametrize(("numbers", "text"), [([3], "3"), ([1, 0, 2, 7], "0-2,7"), ([], ""), ([0, 2, 4], "0,2,4")])
def test_numbers_fold(numbers: list[int], text: str) -> None:
    assert fold_numbers(numbers) == text


def test_runs_of_other_accounts_have_what_their_claims_show() -> None:
    claims = [
        value_of(Claim, each)
        for each in (
            claim(host="a", slots=[2]),
            claim(host="b", slots=[], want=1, place=3),
            claim(host="a", run="r0", slots=[0, 1], age_s=60.0),
            claim(host="a", run="mine", slots=[5]),
        )
    ]
    others = other_runs(claims, {"mine"})
    rows = runs_document([], others, claims, NOW)["jobs"]
    assert [(row["run"], row["state"], row["hosts"], row["slots"], row["place"]) for row in rows] == [
        ("r0", "running", ["a"], {"a": [0, 1]}, None),
        ("r1", "queued", ["a", "b"], {"a": [2]}, 3),
    ]
    assert [(row["user"], row["started"]) for row in rows] == [
        ("alice", "2026-01-02T11:59:00+00:00"),
        ("alice", "2026-01-02T09:58:20+00:00"),
    ]
