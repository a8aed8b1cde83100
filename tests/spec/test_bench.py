"""What the benchmarks' figures mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import DdpctlError
from ddpctl.spec.bench import (
    Reduce,
    RunFigures,
    ScalingReport,
    ScalingRow,
    late_hosts,
    measure_run,
    network_report,
    node_counts,
    slow_hosts,
    slow_pairs,
)


def test_each_rank_s_lines_after_its_first_count_and_ranks_add_up() -> None:
    found = measure_run(
        {
            ("node0", "0"): [
                {"samples_per_s": 1.0, "comm_share": 0.9},
                {"samples_per_s": 10.0, "comm_share": 0.2},
                {"samples_per_s": 20.0, "comm_share": 0.4},
            ],
            ("node1", "1"): [{"samples_per_s": 30.0, "comm_share": 0.1}],
        }
    )
    assert found is not None
    assert found.samples_per_s == pytest.approx(45)
    assert found.comm_share == pytest.approx(0.2)
    assert found.slowest is not None
    assert (found.slowest.host, found.slowest.rank, found.slowest.comm_share) == ("node1", 1, 0.1)


def test_rank_0_alone_speaks_for_the_job() -> None:
    found = measure_run({("node0", "0"): [{"samples_per_s": 5.0}, {"samples_per_s": 100.0}], ("node1", "1"): []})
    assert found == RunFigures(samples_per_s=100.0)


def test_without_communication_the_slowest_rank_is_the_one_with_the_fewest_samples() -> None:
    found = measure_run({("a", "0"): [{"samples_per_s": 5.0}], ("b", "1"): [{"samples_per_s": 4.0}]})
    assert found is not None
    assert found.slowest is not None
    assert found.slowest.rank == 1


def test_metrics_without_samples_are_none() -> None:
    assert measure_run({("a", "0"): [{"loss": 1.0}], ("a", "1"): []}) is None


def row(processes: int, rate: float, **keys: Any) -> ScalingRow:
    return ScalingRow(1, processes, "run", RunFigures(rate, devices=keys.pop("devices", None)), **keys)


def test_speed_up_and_efficiency() -> None:
    report = ScalingReport("job", "lab", (row(1, 100), row(4, 300), row(1, 150, parallel="dp", devices=2)))
    assert [report.speed_up(one) for one in report.rows] == [1.0, 3.0, 1.5]
    assert [report.efficiency(one) for one in report.rows] == [1.0, 0.75, 0.75]


def test_a_base_of_several_processes_counts_as_several() -> None:
    report = ScalingReport("job", "lab", (row(2, 200), row(4, 300)))
    assert [report.speed_up(one) for one in report.rows] == [2.0, 3.0]


def test_no_count_of_processes_or_devices_ends_the_report() -> None:
    report = ScalingReport("job", "lab", (row(0, 100), row(1, 150, parallel="dp", devices=-2)))
    assert [report.speed_up(one) for one in report.rows] == [0.0, 0.0]
    assert [one.devices for one in report.rows] == [1, 1]
    assert report.to_json()["rows"][1]["efficiency"] == 0.0


@pytest.mark.parametrize(
    ("hosts", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))]
)
def test_sizes(hosts: int, counts: tuple[int, ...]) -> None:
    assert node_counts(hosts) == counts


def mesh(hosts: list[str], slow: set[frozenset[str]], fast: float = 1.0) -> list[Reduce]:
    return [
        Reduce((a, b), 1 << 24, 1000.0, fast / 10 if frozenset((a, b)) in slow else fast)
        for index, a in enumerate(hosts)
        for b in hosts[index + 1 :]
    ]


@given(st.integers(3, 9), st.data())
def test_one_slow_host_is_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    hosts = [f"node{number}" for number in range(count)]
    bad = data.draw(st.sampled_from(hosts))
    pairs = mesh(hosts, {frozenset((bad, other)) for other in hosts})
    assert [one.hosts for one in slow_hosts(pairs)] == [(bad,)]
    assert slow_pairs(pairs, {bad}) == ()


@given(st.integers(3, 9), st.data())
def test_one_slow_link_blames_neither_host(count: int, data: st.DataObject) -> None:
    hosts = [f"node{number}" for number in range(count)]
    pairs = mesh(hosts, set())
    bad = data.draw(st.sampled_from(pairs)).hosts
    pairs = mesh(hosts, {frozenset(bad)})
    assert slow_hosts(pairs) == ()
    assert [one.hosts for one in slow_pairs(pairs, set())] == [bad]


def test_equal_links_and_two_hosts_are_not_judged() -> None:
    assert slow_hosts(mesh(["a", "b"], {frozenset("ab")})) == ()
    assert slow_pairs(mesh(["a", "b", "c"], set()), set()) == ()


def test_a_late_host() -> None:
    late = [Reduce(pair, 8, 1, 1, time) for pair, time in ((("a", "b"), 50), (("a", "c"), 900), (("b", "c"), 800))]
    assert [one.hosts for one in late_hosts(late)] == [("c",)]


LINES = [
    "round 1: a with b",
    json.dumps({"pair": ["a", "b"], "ranks": [0, 1], "latency_us": 50, "bytes": 1024, "time_us": 90, "busbw_gb_s": 1}),
    json.dumps(
        {
            "op": "all_reduce",
            "backend": "gloo",
            "bytes": 1024,
            "world_size": 2,
            "time_us": 99,
            "algbw_gb_s": 1,
            "busbw_gb_s": 1,
        }
    ),
]


def test_a_report_is_read_from_the_program_s_lines() -> None:
    report = network_report(["{broken", *LINES], job="j", cluster="c", run="r", hosts=("a", "b"))
    assert report.pairs == (Reduce(("a", "b"), 1024, 90.0, 1.0, 50.0),)
    assert report.whole == (Reduce(("a", "b"), 1024, 99.0, 1.0),)
    assert report.to_json()["slow"] == []


def test_a_run_without_results_says_so() -> None:
    with pytest.raises(DdpctlError, match="r ended without results"):
        network_report(LINES[:1], job="j", cluster="c", run="r", hosts=("a", "b"))


PAIR = {"pair": ["a", "b"], "latency_us": 50, "bytes": 1024, "time_us": 90, "busbw_gb_s": 1}
WHOLE = {"op": "all_reduce", "backend": "gloo", "bytes": 1024, "time_us": 99, "busbw_gb_s": 1}
MISFITS = [
    {"pair": 3},
    {**PAIR, "pair": None},
    {**PAIR, "pair": ["a"]},
    {**PAIR, "pair": ["a", "a"]},
    {**PAIR, "pair": ["a", "stranger"]},
    {**PAIR, "pair": ["a", ["b"]]},
    {**PAIR, "busbw_gb_s": float("nan")},
    {**PAIR, "time_us": float("inf")},
    {**PAIR, "time_us": -1},
    {**PAIR, "busbw_gb_s": None},
    {**PAIR, "busbw_gb_s": "1"},
    {**PAIR, "bytes": 10**400},
    {**PAIR, "latency_us": []},
    {**WHOLE, "bytes": 0},
    {**WHOLE, "backend": ["gloo"]},
    {**WHOLE, "busbw_gb_s": 1e300},
    {"op": "all_reduce"},
]


@pytest.mark.parametrize("misfit", [*map(json.dumps, MISFITS), "[" * 100_000, '{"pair":' + "[" * 100_000, '{"\udcff'])
def test_a_line_that_is_no_result_is_skipped(misfit: str) -> None:
    report = network_report([misfit, *LINES, misfit], job="j", cluster="c", run="r", hosts=("a", "b"))
    assert report == network_report(LINES, job="j", cluster="c", run="r", hosts=("a", "b"))
