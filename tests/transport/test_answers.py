"""Whatever a node says becomes a value of the right shape or that host's error, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import random
import resource
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpctl.errors import RemoteError
from ddpctl.spec import bounds
from ddpctl.spec.mesh import Link
from ddpctl.spec.outcome import Cause
from ddpctl.spec.record import RecordedRun, RecordedTimeouts
from ddpctl.transport import answers
from ddpctl.transport.base import Frame
from ddpctl.transport.limits import LINE_BYTES
from ddpctl.transport.pipe import parse
from ddpctl.transport.shapes import preflight
from ddpctl.transport.shapes.adapters import adapter

TIME = "2026-01-02T03:04:05.123+00:00"
CAUSE = {"host": "node2", "rank": 3, "reason": "exited", "message": "gone", "time": TIME}
RECORD = {"project": "exp", "hosts": ["node1", "node2"], "world_size": 4, "timeouts": {"stop": 10}}
STATUS: dict[str, Any] = {
    "run": "r1",
    "job": "train",
    "cluster": "lab",
    "host": "node1",
    "node_rank": 0,
    "state": "failed",
    "cause": CAUSE,
    "metrics": {"0": {"loss": 0.5}, "": {"step": 7}},
    "record": {**RECORD, "secret": "x"},
}
LINES: dict[str, Any] = {
    "rank": [0], "stream": ["stdout"], "time": [1.5], "text": ["a\udcff\0b"], "end": ["\n"], "offset": [9],
    "attempt": [1],
}  # fmt: skip
ADDRESS = {"address": "10.0.0.1", "interface": "eth0", "family": 4, "prefix": 24, "up": True, "speed": None}
NETWORK: dict[str, Any] = {
    "addresses": [ADDRESS],
    "ssh_address": None,
    "port_range": [32768, 60999],
    "hostname": "n",
    "gpus": 0,
    "cores": 2,
    "machine": "x86_64",
    "uid": 0,
    "names": {},
    "neighbours": {"limit": 1024, "entries": 7, "overflows": 0},
}
WORDS = ("runs", "status", "answers", "ports", "open", "items", "sizes")
JUNK = [None, True, 1.5, -1, "x", "\0", [], {}, [STATUS], {"runs": [STATUS]}, float("inf")]


def status(**changes: Any) -> Any:
    return answers.check_result("status", {"runs": [{**STATUS, **changes}]}, "node1", {"job": "train"})


def refused(*words: str, **changes: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        status(**changes)
    assert caught.value.kind == "protocol"
    assert all(word in str(caught.value) for word in ("garbled", "status", "preflight", *words))


def test_what_has_no_shape_is_dropped() -> None:
    found = status(other=1)["runs"][0]
    assert found.cause == Cause("node2", "exited", "gone", TIME, rank=3)
    assert found.record == RecordedRun(
        "exp", hosts=("node1", "node2"), world_size=4, timeouts=RecordedTimeouts(stop=10.0)
    )


def test_a_node_speaks_for_itself_of_what_it_was_asked() -> None:
    refused("runs.0: it is about another host", host="node2")
    refused("another job", job="other")
    refused("runs.0: its record does not name it", record={**RECORD, "hosts": ["node2", "node3"]})
    assert status(record={"project": "exp"})["runs"][0].record.hosts is None, "a damaged record hides no run"
    with pytest.raises(RemoteError, match="another run"):
        answers.check_result(
            "stop", {"signalled": 0, "forced": 0, "survivors": [], "status": STATUS}, "node1", {"run": "r2"}
        )
    untracked = {"host": "node2", "folder": "/w", "files": 0, "bytes": 0, "largest": [], "whole": True}
    with pytest.raises(RemoteError, match="another host"):
        answers.check_result("untracked", untracked, "node1", {})
    args = {"targets": [{"peer": "node2", "address": "10.0.0.2", "ports": [22]}]}
    made = {"open": [["node2", "10.0.0.2", None, None, [23]]], "links": [], "speeds": [], "neighbours": None}
    with pytest.raises(RemoteError, match="not asked for"):
        answers.check_result("dial", made, "node1", args)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\0", "a\n", "-x", "x" * 64, "\x1b[2J", 7, None, ["a"]])
def test_names_are_names(name: object) -> None:
    refused("runs.0.run", run=name)
    refused("runs.0.record.hosts", record={**RECORD, "hosts": ["node1", name]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node_rank", -1),
        ("node_rank", None),
        ("state", "fine"),
        ("ranks", [1 << 20]),
        ("heartbeat_age_s", float("nan")),
        ("pid", True),
        ("dropped_lines", 1.5),
        ("unfinished", [{"path": "a", "bytes": -1}]),
        ("exit_code", 1 << 70),
        ("note", "x" * 100_000),
        ("metrics", {"0": {"loss": 10**400}}),
        ("cause", {**CAUSE, "time": "now"}),
    ],
)
def test_every_value_has_bounds(key: str, value: object) -> None:
    refused(f"runs.0.{key}", **{key: value})


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"time": [-1.0]}, r"lines\.time\.0"),
        ({"time": [1e300]}, r"lines\.time\.0"),
        ({"text": [1]}, r"lines\.text\.0"),
        ({"offset": [9, 10]}, "lines: its columns have different lengths"),
        ({"rank": []}, "lines: its columns have different lengths"),
        ({"text": ["a\nnode1:0 | b"]}, "lines: a line has a line feed inside"),
    ],
)
def test_a_line_is_whole_or_not_taken(wrong: dict[str, Any], where: str) -> None:
    frame = {"lines": LINES, "offset": 9, "more": False}
    assert answers.check_frame("tail", Frame(frame), "node1", {}).data == frame
    with pytest.raises(RemoteError, match=where):
        answers.check_frame("tail", Frame({**frame, "lines": {**LINES, **wrong}}), "node1", {})


@pytest.mark.parametrize("frame", [{}, {"other": 1}, {"lines": [{}]}, {"lines": {"a": [1]}}, {"state": "fine"}])
def test_a_message_of_no_known_kind(frame: dict[str, Any]) -> None:
    with pytest.raises(RemoteError, match="tail"):
        answers.check_frame("tail", Frame(frame), "node1", {})


def probe(value: Any, name: str = "network", **changes: Any) -> Any:
    answer = {"ok": True, "value": value, "error": None, "timed_out": False, "seconds": 0.1, **changes}
    asked = {"questions": [{"id": name}]}
    return answers.check_result("probe", {"answers": {name: answer}, "received": 1.0, "sent": 2.0}, "node1", asked)


def test_facts_that_plans_are_made_from_have_a_shape_and_the_others_bounds() -> None:
    assert probe(NETWORK)["answers"]["network"].value == NETWORK
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for name, value in (
        ("network", {**NETWORK, "gpus": 1 << 40}),
        ("network", {**NETWORK, "addresses": [{**ADDRESS, "prefix": 33}]}),
        ("network", {**NETWORK, "addresses": [{**ADDRESS, "address": "10.0.0.1\x1b"}]}),
        ("network:names=['x']", {**NETWORK, "port_range": [1]}),
        ("disk", deep),
        ("disk", {"free": 1 << 70}),
        ("disk", [float("inf")]),
    ):
        with pytest.raises(RemoteError, match=name.partition(":")[0]):
            probe(value, name)
    assert probe({"no": "shape"}, "network", ok=False)  # another test covers the reason of a missing answer
    with pytest.raises(RemoteError, match="no answer to 'disk'"):
        answers.check_result(
            "probe", {"answers": {}, "received": 1.0, "sent": 2.0}, "node1", {"questions": [{"id": "disk"}]}
        )


CURVE: dict[str, Any] = {"points": [[1, 0.5], [2, 0.25]], "count": 2, "not_finite": 0, "not_finite_at": None}
GPU: dict[str, Any] = {
    "index": 0,
    "name": "H100",
    "held": True,
    "every_s": 10.0,
    "use": [97.5, None],
    "memory_mb": [61440, None],
    "memory_total_mb": 81920,
    "memory_max_mb": 61440,
    "temperature_max": 71.0,
    "power_max_w": None,
}
HISTORY: dict[str, Any] = {
    "gpus": {"1": {"began": "2026-11-24T03:00:00Z", "gpus": [GPU]}},
    "launch": {"argv": ["python"], "torch": None},
    "network": {"hosts": ["node1", "node2"], "links": [[0, 1, "ok", 0.1, 940.0]], "left_out": 0},
    "attempts": {"1": {"0": {"axis": "step", "sampled": False, "series": {"loss": CURVE}}}},
}


def test_a_history_is_whole() -> None:
    found = answers.check_result("history", HISTORY, "node1", {})
    assert found["attempts"]["1"]["0"].series["loss"].points == ((1, 0.5), (2, 0.25))
    assert asdict(found["gpus"]["1"].gpus[0]) == {**GPU, "use": (97.5, None), "memory_mb": (61440, None)}
    assert found["network"].links() == (Link("node1", "node2", "ok", 0.1, 940.0),)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("network.links.0", [0, 2, "ok", None, None]),
        ("network.links.0", [0, 1, "o k", None, None]),
        ("network.hosts", ["../x", "node2"]),
        ("launch.argv", [1]),
        ("gpus.1.gpus.0.use", [101.0]),
        ("gpus.1.gpus.0.every_s", 0),
        ("gpus.1.began", "yesterday"),
        ("attempts.1", {"one": {}}),
        ("attempts.1.0.axis", "time"),
        ("attempts.1.0.series.loss.points", [[1, 0.5]] * 501),
        ("attempts.1.0.series.loss.points", [[1, float("nan")]]),
        ("attempts.1.0.series.loss.points", [[1, 2, 3]]),
    ],
)
def test_a_history_that_is_none_is_refused(place: str, value: object) -> None:
    wrong = copy.deepcopy(HISTORY)
    *folders, name = place.split(".")
    at: Any = wrong
    for folder in folders:
        at = at[int(folder) if isinstance(at, list) else folder]
    at[int(name) if isinstance(at, list) else name] = value
    with pytest.raises(RemoteError, match="history"):
        answers.check_result("history", wrong, "node1", {})


CONTAINERS = {
    *(
        "typed-dict",
        "typed-dict-field",
        "dataclass",
        "dataclass-args",
        "dataclass-field",
        "definitions",
        "definition-ref",
    ),
    *("list", "tuple", "dict", "nullable", "union", "default", "function-after", "function-before", "json-or-python"),
}
LOOSE = {"int", "float", "bool", "str"}  # convert values unless they are strict
LEAVES = {*LOOSE, "is-instance", "literal", "any"}


def parts(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every schema inside a schema of pydantic, with its place."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield place, schema
        for key, inner in schema.items():
            if key not in ("json_schema", "serialization", "metadata", "function", "config"):
                yield from parts(inner, f"{place}.{key}")
    elif isinstance(schema, (list, tuple)):
        for number, inner in enumerate(schema):
            yield from parts(inner, f"{place}.{number}")


SHAPES = {
    **answers.RESULTS,
    **{f"{verb}:{key}": shape for verb, kinds in answers.FRAMES.items() for key, shape in kinds.items()},
    **preflight.FACTS,
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_leaf_is_strict_by_itself(name: str) -> None:
    """A dataclass is not made from a JSON object in pydantic's strict mode, so each leaf refuses conversions."""
    found = list(parts(adapter(SHAPES[name]).core_schema, name))
    assert {part["type"] for _, part in found} <= CONTAINERS | LEAVES
    assert [place for place, part in found if part["type"] in LOOSE and not part.get("strict")] == []


# A right value, and values of other JSON types that a conversion would accept.
WRONG_TYPES: list[tuple[Any, Any, list[Any]]] = [
    (bounds.Flag, True, [1, 0, 1.0, "true", "1", None, [], {}]),
    (bounds.Integer, 7, [7.0, "7", True, None, [7], {}]),
    (bounds.Real, 7.5, ["7.5", True, None, [7.5], {}]),
    (bounds.Unicode, "x", [1, 1.5, True, None, ["x"], {}]),
    (bounds.Text, "x", [1, 1.5, True, None, ["x"], {}]),
    (bounds.Short, "x", [1, True, None, ["x"], {}]),
    (bounds.Name, "x", [1, True, None, ["x"], {}]),
    (bounds.Label, "x", [1, True, None, ["x"], {}]),
    (bounds.Digits, "1", [1, 1.0, True, None, ["1"], {}]),
    (bounds.Hash, "0" * 64, [0, None, ["0" * 64], {}]),
    (bounds.File, "/x", [1, None, ["/x"], {}]),
    (bounds.IP, "10.0.0.1", [1, 1 << 24, True, None, ["10.0.0.1"], {}]),
    (bounds.Place, "x", [1, None, ["x"], {}]),
    (bounds.Moment, TIME, [0, 1.5, None, [TIME], {}]),
    (bounds.NodeState, "failed", [1, None, ["failed"], {}]),
    (bounds.Count, 7, [7.0, "7", True, None, [7], {}]),
    (bounds.Whole, -7, [-7.0, "-7", False, None, [-7], {}]),
    (bounds.Small, 7, [7.0, "7", True, None, [7], {}]),
    (bounds.Port, 7, [7.0, "7", True, None, [7], {}]),
    (bounds.Number, 7.5, ["7.5", True, None, [7.5], {}]),
    (bounds.Figure, 7, ["7", True, None, [7], {}]),
    (tuple[bounds.Count, ...], [7], [{}, {"7": 7}, "7", 7, None]),
    (tuple[bounds.Count, bounds.Short], [7, "x"], [{}, {"7": "x"}, "7x", 7, None, [7], [7, "x", 7]]),
    (list[bounds.Count], [7], [{}, {"7": 7}, "7", 7, None]),
    (dict[bounds.Digits, bounds.Count], {"7": 7}, [[], [["7", 7]], "7", 7, None]),
]


@pytest.mark.parametrize(("kind", "right", "wrong"), WRONG_TYPES)
def test_a_value_of_another_type_is_not_converted(kind: Any, right: object, wrong: list[object]) -> None:
    adapter(kind).validate_python(right)
    for value in wrong:
        with pytest.raises(ValidationError):
            adapter(kind).validate_python(value)


def test_a_step_stays_a_whole_number() -> None:
    assert repr(adapter(tuple[bounds.Figure, ...]).validate_python([7, 7.0])) == "(7, 7.0)"


@settings(deadline=None)  # a shape is made when it is first needed
@given(st.integers(0, 10**9), st.sampled_from(sorted(answers.RESULTS)))
def test_anything_is_a_value_or_an_error_of_the_protocol(seed: int, verb: str) -> None:
    rng = random.Random(seed)
    data = {rng.choice(WORDS): rng.choice(JUNK) for _ in range(3)}
    with contextlib.suppress(RemoteError):
        answers.check_result(verb, data, "node1", {})


@pytest.mark.slow
def test_the_longest_line_costs_bounded_memory() -> None:
    """The widest value that JSON can become: many small containers."""
    line = b'{"a":[' + b",".join([b"{}"] * ((LINE_BYTES - 10) // 3)) + b"]}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parse(line)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    "line", [b'{"a":NaN}', b'{"a":-Infinity}', '{"a":"é"}'.encode(), b'{"a":' + b"9" * 5000 + b"}"]
)
def test_what_python_would_take_for_json(line: bytes) -> None:
    with pytest.raises(RemoteError):
        parse(line)
