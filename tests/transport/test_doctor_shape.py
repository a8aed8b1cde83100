"""The shape of what a node sees of its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl.errors import RemoteError
from ddpctl.transport import answers
from tests.worker.looks import Look, group, look, receives, recorded, waits_in


def answer(*looks: Look, host: str = "node0", **changes: Any) -> Any:
    said = {"state": "running", "ended": False, "looks": list(looks), "slow": [], **changes}
    return answers.check_result("doctor", said, host, {"run": "r1"})


def refused(where: str, *looks: Look, **changes: Any) -> None:
    with pytest.raises(RemoteError, match=where) as caught:
        answer(*looks, **changes)
    assert caught.value.kind == "protocol"


def test_looks_are_taken_as_they_are() -> None:
    groups = {"7": group([("all_reduce", 4)], waits=3.0, ranks=[0, 1], started=True)}
    child = {"pid": 7, "state": "sleeping", "sleep_s": 0.2, "still": True, "polls": True, "stack": []}
    more = {"children": [child], "threads": [], "sleep_s": None, "polls": True, "unseen": 2}
    for one in (look(0), waits_in(1), receives(0, 1), look(0, groups=groups, **more)):
        (found,) = answer(one)["looks"]
        rest = ("groups", "stack")
        assert {name: found[name] for name in found if name not in rest} == {
            name: one[name] for name in one if name not in rest
        }
        assert [list(frame) for frame in found["stack"]] == one["stack"]
    assert [tuple(entry) for entry in found["groups"]["7"]["entries"]] == [tuple(groups["7"]["entries"][0])]
    assert found["groups"]["7"]["ranks"] == [0, 1]


@pytest.mark.parametrize("name", ["asleep", "loader", "skipped", "receive_cycle", "subgroup"])
def test_looks_at_real_jobs_have_it(name: str) -> None:
    for one in recorded(name):
        assert answer(one, host=str(one["host"]))["looks"][0]["stack"]


def test_a_node_speaks_for_itself() -> None:
    refused("another host", look(2))


@pytest.mark.parametrize("name", ["host", "rank", "local_rank", "pid", "state"])
def test_what_each_look_must_have(name: str) -> None:
    refused(f"looks.0.{name}", {key: value for key, value in look(0).items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", -1),
        ("rank", 1 << 20),
        ("rank", "0"),
        ("pid", True),
        ("state", "x" * 21),
        ("cpu", float("nan")),
        ("cpu", "99"),
        ("bytes", -1),
        ("bytes", 1.5),
        ("now", None),
        ("sleep_s", 1e301),
        ("stack", [["train.py", 88]]),
        ("stack", [["train.py", "88", "step"]]),
        ("stack", [["train.py", 88, "step"]] * 201),
        ("stack", {"0": "step"}),
        ("peers", {"src": -1}),
        ("peers", {"src": None}),
        ("peers", [1]),
        ("children", [{"pid": 1, "state": "x"}]),
        ("children", [{"pid": 1, "state": "x", "stack": []}] * 101),
        ("groups", {"0": {}}),
        ("groups", {"0": {"entries": [[1, "all_reduce", 4, True, 1.0]]}}),
        ("groups", {"0": {"entries": [[-1, "all_reduce", 4, True, 1.0, False]]}}),
        ("groups", {"0": {"entries": [[1, None, 4, True, 1.0, False]]}}),
        ("groups", {"0": {"entries": [[1, "all_reduce", "4", True, 1.0, False]]}}),
        ("groups", {"0": {"entries": [[1, "all_reduce", 4, 1, 1.0, False]]}}),
        ("groups", {"0": {"entries": [[1, "all_reduce", 4, True, float("inf"), False]]}}),
        ("groups", {"0": {"entries": [], "ranks": ["0"]}}),
        ("groups", {"0": {"entries": [], "ranks": None}}),
        ("missing", "nothing"),
        ("missing", [7]),
        ("spins", "yes"),
    ],
)
def test_every_value_has_a_type_and_bounds(name: str, value: object) -> None:
    refused(f"looks.0.{name}", {**look(0), name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", "fine"), ("ended", "no"), ("looks", {}), ("looks", [7]), ("slow", [{"rank": 0}]), ("slow", None)],
)
def test_the_answer_around_them(name: str, value: object) -> None:
    refused(name, **{name: value})
