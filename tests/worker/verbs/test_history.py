"""What a node says of a run for a report: its metrics, thinned out, by attempt and rank."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.verbs import history
from ddpctl_worker.verbs.history import RankSeries
from ddpctl_worker.verbs.limits import SERIES_POINTS
from tests.worker.node import Node

WRITES = """
import json, os
rank = int(os.environ["RANK"])
with open(os.environ["DDPCTL_METRICS"], "a") as file:
    for step in range(3000):
        loss = 99.0 if step == 1234 else float("nan") if step >= 2990 else 1 / (step + 1)
        file.write(json.dumps({"step": step, "loss": loss, "name": "text"}) + "\\n")
        if step % 1000 == 999:
            file.write(json.dumps({"accuracy": step / 3000}) + "\\n")
"""


def series(text: str, most: int = 1 << 20) -> RankSeries:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-0.jsonl")
        path.write_text(text)
        return RankSeries(str(path), most)


def test_the_verb_thins_out_what_ranks_wrote(node: Node) -> None:
    network = {"hosts": ["node0"], "links": [], "left_out": 0}
    run = node.start(WRITES, network=network)
    assert node.wait_state(run)["state"] == "succeeded"
    found = node.call("history", run=run)
    assert found["network"] == network
    assert found["launch"]["argv"] is None, "this record is older than that key"
    assert sorted(found["attempts"]["1"]) == ["0", "1"]
    rank = found["attempts"]["1"]["1"]
    assert (rank["axis"], rank["sampled"], sorted(rank["series"])) == ("step", False, ["accuracy", "loss"])
    loss, accuracy = rank["series"]["loss"], rank["series"]["accuracy"]
    assert (loss["count"], loss["not_finite"], loss["not_finite_at"]) == (2990, 10, 2990)
    assert len(loss["points"]) <= SERIES_POINTS
    assert [1234, 99.0] in loss["points"]
    assert accuracy["points"] == [
        [999, 0.333],
        [1999, pytest.approx(0.6663, 1e-3)],
        [2999, pytest.approx(0.9997, 1e-3)],
    ]


def test_each_attempt_has_its_own(node: Node) -> None:
    run = node.start(WRITES)
    node.wait_state(run)
    for attempt in (2, 11):
        folder = node.folder(run) / "attempts" / str(attempt) / "metrics"
        folder.mkdir(parents=True)
        (folder / "rank-0.jsonl").write_text(json.dumps({"step": attempt, "loss": 1.5}) + "\n")
    found = node.call("history", run=run)["attempts"]
    assert {number: one["0"]["series"]["loss"]["points"] for number, one in found.items()} == {
        "2": [[2, 1.5]],
        "11": [[11, 1.5]],
    }


@pytest.mark.slow
@given(st.lists(st.one_of(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.floats() | st.integers()))))
def test_any_file_gives_series_of_finite_numbers(lines: list[Any]) -> None:
    found = series("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)).to_json(20)
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found
    assert all(len(one["points"]) <= 20 for one in found["series"].values())
    assert all(abs(y) < 1e300 for one in found["series"].values() for _, y in one["points"])


def test_a_number_of_any_size_can_be_sent() -> None:
    found = series(json.dumps({"step": 1 << 80, "seen": 1 << 70}) + "\n").to_json(20)
    assert found["series"]["seen"]["points"] == [[float(1 << 80), float(1 << 70)]]


def test_without_step_or_epoch_lines_are_counted() -> None:
    found = series('{"loss": 3}\n{"loss": 2}\n').to_json(20)
    assert (found["axis"], found["series"]["loss"]["points"]) == ("line", [[1.0, 3], [2.0, 2]])


def test_of_a_file_that_is_too_long_parts_are_read() -> None:
    text = "".join(json.dumps({"step": step, "loss": step % 7}) + "\n" for step in range(20_000))
    found = series(text, most=len(text) // 10)
    steps = [x for x, _ in found.to_json(SERIES_POINTS)["series"]["loss"]["points"]]
    assert found.sampled
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert found.series["loss"].count < 2100
    assert max(after - before for before, after in pairwise(steps)) < 1000


def test_many_series_share_an_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    run = node.start(WRITES)
    node.wait_state(run)
    monkeypatch.setattr(history, "ANSWER_POINTS", 100)
    monkeypatch.setattr("os.nice", lambda steps: steps)
    found = history.history({"base_dir": str(node.base), "host": node.host, "run": run}, None)  # type: ignore[arg-type]
    points = [len(one["points"]) for rank in found["attempts"]["1"].values() for one in rank["series"].values()]
    assert sum(points) <= 100
