"""A report as a single document, and the times in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.limits import MOST_RECORDED_HOSTS
from ddpctl.spec.mesh import Dial, Link, Mesh, Speed
from ddpctl.spec.network import Network
from ddpctl.spec.times import duration_seconds, elapsed
from tests.render.reports import small, worst
from tests.values import value_of

KEYS = [
    "schema", "job", "run", "cluster", "project", "folder", "state", "verdict", "made", "started", "ended",
    "duration_s", "user", "controller", "world_size", "code", "command", "settings", "nodes", "continues", "attempts",
    "cause", "candidates", "diagnosis", "slow", "metrics", "ranks", "gpus", "network", "checkpoints", "missing",
]  # fmt: skip


@pytest.mark.parametrize("report", [small(), worst(8, 2)], ids=["small", "worst"])
def test_the_document_has_all_keys_and_is_json(report: object) -> None:
    document = report.to_json()  # type: ignore[attr-defined]
    assert list(document) == KEYS
    text = json.dumps(document, allow_nan=False)
    assert json.dumps(json.loads(text)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.26, "8.3 s"),
        (59.4, "59 s"),
        (59.96, "1 min"),
        (192, "3 min 12 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_how_long_it_took(seconds: float, text: str) -> None:
    assert duration_seconds(seconds) == text


@given(st.floats(0, 1e9))
def test_any_time_has_words(seconds: float) -> None:
    assert not duration_seconds(seconds).startswith("0 ")


@pytest.mark.parametrize("damaged", [None, "", "yesterday", "2026-11-24T03:00:00"])
def test_a_damaged_time_is_no_time(damaged: str | None) -> None:
    assert elapsed(damaged, "2026-11-24T03:00:00+00:00") is None


def test_a_record_keeps_what_was_measured_between_64_hosts_at_most() -> None:
    names = tuple(f"node{number}" for number in range(100))
    dials = [Dial(names[number], names[(number + 1) % 100], "10.0.0.1", 29500, "ok") for number in range(100)]
    dials[90] = dials[90]._replace(status="dropped")
    speeds = tuple(
        Speed(dial.dialer, dial.peer, 0.12345, 10.0 if number == 80 else 900.0, 900.0)
        for number, dial in enumerate(dials)
    )
    kept = Network.of(Mesh(hosts=names, dials=tuple(dials), speeds=speeds))
    assert (len(kept.hosts), kept.left_out) == (MOST_RECORDED_HOSTS, 36)
    assert {"node90", "node91", "node80", "node81"} <= set(kept.hosts)
    assert Link("node90", "node91", "dropped", 0.123, 900.0) in kept.links()
    assert value_of(Network, json.loads(json.dumps(kept.to_json()))) == kept
    assert len(json.dumps(kept.to_json())) < 20_000
