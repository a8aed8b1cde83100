"""What ``ddpctl doctor --json`` gives."""

from __future__ import annotations

from ddpctl.spec.doctor import DoctorReport, rank_json
from ddpctl_worker.rules.verdict import diagnose
from ddpctl_worker.wire import contract
from tests.worker.looks import C10D, TRAIN, Look, behind, look, waits_in


def consultation(*looks: Look) -> DoctorReport:
    return DoctorReport("train", "r1", "running", diagnose(looks), looks)


def test_the_document() -> None:
    made = consultation(waits_in(1), behind(0)).to_json()
    assert list(made) == ["schema", "job", "run", "verdict", "suspects", "ranks", "groups", "slow"]
    assert (made["schema"], made["job"], made["run"]) == (contract.SCHEMA, "train", "r1")
    assert made["suspects"] == [{"host": "node0", "rank": 0}]
    assert [one["rank"] for one in made["ranks"]] == [0, 1]
    assert sorted(rank for one in made["groups"] for rank in one["ranks"]) == [0, 1]
    assert made["slow"] == []


def test_a_rank() -> None:
    one = rank_json(waits_in(1, rss_mb=12.5, output_age_s=3.0, cpu=99.0))
    assert one == {
        "host": "node0",
        "rank": 1,
        "pid": 1001,
        "state": "sleeping",
        "cpu": 99.0,
        "gpu": None,
        "rss_mb": 12.5,
        "last_output_age_s": 3.0,
        "stack": [
            {"file": TRAIN, "line": 88, "function": "step"},
            {"file": TRAIN, "line": 120, "function": "<module>"},
        ],
        "collective": {"group": "0", "seq": 6, "op": "broadcast", "state": "waiting"},
    }
    assert rank_json(behind(1))["collective"]["state"] == "done"


def test_a_rank_of_which_little_is_known() -> None:
    bare = {"host": "node0", "rank": 0, "local_rank": 0, "pid": 1, "state": "unknown"}
    assert [rank_json(bare)[name] for name in ("cpu", "gpu", "rss_mb", "stack", "collective")] == [None] * 5
    assert rank_json(look(0, stack=[], groups={}))["stack"] is None
    assert rank_json(look(0, stack=[[C10D, 7, "recv"]]))["stack"] == [{"file": C10D, "line": 7, "function": "recv"}]
