"""The benchmark of the collectives: formulas, sizes, the pairs of ranks, and whole measurements on loopback."""

from __future__ import annotations

import json
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import Lazy

from .conftest import Interpreter, both_interpreters, forked

torch = Lazy("torch")
common = Lazy("common")
job = Lazy("allreduce_bench")

QUICK = ("--iters", "2", "--warmup", "1")
OPS = ["all_reduce", "parameter_server", "reduce_scatter", "all_gather", "broadcast"]


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("parameter_server", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 5, 0.8),
        ("broadcast", 2, 1.0),
        ("broadcast", 64, 1.0),
        *((op, 1, 0.0) for op in OPS),
    ],
)
def test_the_bus_factor_is_that_of_nccl_tests(op: str, ranks: int, factor: float) -> None:
    assert job.bus_factor(op, ranks) == pytest.approx(factor)


def test_bandwidths_are_in_a_thousand_million_bytes_a_second() -> None:
    assert job.bandwidths("all_reduce", 10**9, 4, 0.5) == pytest.approx((2.0, 3.0))
    assert job.bandwidths("broadcast", 4096, 4, 1e-6) == pytest.approx((4.096, 4.096))


@given(st.integers(2, 40))
def test_each_two_meet_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = list(job.rounds(count))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        everyone = [one for pair in pairs for one in pair]
        assert len(set(everyone)) == len(everyone) == count - count % 2


def test_sizes_are_read_in_powers_of_1024() -> None:
    args = job.parse_args(["--min_bytes", "12", "--max_bytes", "3k"])
    assert (args.min_bytes, args.max_bytes) == (12, 3 << 10)
    assert (job.byte_count("64M"), job.byte_count("2G")) == (64 << 20, 2 << 30)


@pytest.mark.parametrize("text", ["0", "0K", "-8", "1.5M", "4KB", "M", "", "1T"])
def test_what_is_no_size_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.parse_args([f"--max_bytes={text}"])
    assert ended.value.code == 2
    assert f"{text!r} is no size: give bytes such as 8, 4K, 64M or 2G" in capsys.readouterr().err


def test_sizes_grow_by_four_up_to_the_largest() -> None:
    assert job.message_sizes(8, 1024, 2) == [8, 32, 128, 512, 1024]
    assert job.message_sizes(8, 128, 2) == [8, 32, 128]
    assert job.message_sizes(8, 8, 3) == [12]
    assert job.message_sizes(8, 128, 64) == [256], "sizes that fall together are measured once"


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(1, 1000))
def test_every_rank_can_take_an_equal_part(least: int, more: int, ranks: int) -> None:
    sizes = job.message_sizes(least, least + more, ranks)
    assert all(size % (4 * ranks) == 0 for size in sizes)
    assert sizes == sorted(set(sizes))
    assert least <= sizes[0] < least + 4 * ranks
    assert least + more <= sizes[-1] < least + more + 4 * ranks


def test_results_of_three_ranks() -> None:
    """Rank 0 has 1 2 3, rank 1 has 2 3 4, rank 2 has 3 4 5."""
    assert job.expected("all_reduce", 1, 3) == job.expected("parameter_server", 1, 3) == [6, 9, 12]
    assert [job.expected("reduce_scatter", rank, 3) for rank in range(3)] == [[6], [9], [12]]
    assert job.expected("all_gather", 2, 3) == [1, 3, 5]
    assert job.expected("broadcast", 2, 3) == [1, 2, 3]


def test_one_rank_has_times_and_no_bus_bandwidth(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    job.main([*QUICK, "--max_bytes", "32"])
    out = capsys.readouterr().out
    assert "one rank: nothing crosses a link" in out
    lines = json_lines(out)
    assert [(line["op"], line["bytes"]) for line in lines] == [(op, size) for size in (8, 32) for op in OPS]
    assert all(line["time_us"] > 0 and line["busbw_gb_s"] == 0 for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--min_bytes", "2K", "--max_bytes", "1K"], "--min_bytes 2048 is more than --max_bytes 1024"),
        (["--pairs"], "--pairs measures between nodes, and node7 is the only one: start it on two or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    alone: None, monkeypatch: pytest.MonkeyPatch, given: list[str], said: str
) -> None:
    monkeypatch.setenv("DDPCTL_HOST", "node7")
    with pytest.raises(common.Refused, match=f"^{said}$"):
        job.main(given)


def test_the_nodes_of_a_pair_that_do_not_meet_are_named() -> None:
    net = job.Network(4, {0: "node0", 2: "node1", 4: "node2"}, torch.device("cpu"), None, SimpleNamespace())
    with pytest.raises(common.JobError) as raised, job.named(net, [[0, 4]]):
        raise RuntimeError("timed out\nat tcp/pair.cc")
    assert str(raised.value) == "node0 with node2: timed out; can they reach each other on every port?"


def json_lines(out: str) -> list[dict[str, Any]]:
    """What is for programs."""
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("first", "often"), [(1e-6, (5, 20)), (0.2, (5, 20)), (0.22, (2, 20)), (1.0, (0, 5)), (2.0, (0, 2)), (60, (0, 1))]
)
def test_slow_runs_are_repeated_less_often(first: float, often: tuple[int, int]) -> None:
    assert job.how_often(job.parse_args([]), first) == often


@both_interpreters("tests/jobs/test_allreduce_bench.py::test_two_ranks_fill_the_table")
def test_two_ranks_fill_the_table(interpreter: Interpreter) -> None:
    done = interpreter.launch(2, "allreduce_bench.py", *QUICK, "--min_bytes", "4K", "--max_bytes", "64K")
    assert done.status == 0, done.stderr
    old = interpreter.torch.startswith("1.")
    assert ("reduce_scatter is left out: gloo of torch 1.13" in done.stdout) == old
    ops = [op for op in OPS if not old or op != "reduce_scatter"]
    lines = json_lines(done.stdout)
    assert [(line["op"], line["bytes"]) for line in lines] == [(op, size << 10) for size in (4, 16, 64) for op in ops]
    for line in lines:
        assert line["world_size"] == 2
        assert line["algbw_gb_s"] == pytest.approx(line["bytes"] / line["time_us"] / 1e3, rel=0.01)
        share = 0.5 if line["op"] in ("reduce_scatter", "all_gather") else 1.0
        assert line["busbw_gb_s"] == pytest.approx(line["algbw_gb_s"] * share, rel=0.01)
        row = f"{line['bytes']:>12} {line['op']:<16} {line['time_us']:>12.1f} "
        assert row in done.stdout


RANK = """
import sys
import common
import allreduce_bench
sys.argv = ["allreduce_bench.py"]
{before}
common.run(lambda: allreduce_bench.main({args}))
"""


def test_nodes_meet_in_pairs_and_all_together() -> None:
    """Three nodes, the first of two ranks: in each round one node has no partner, and one rank always waits."""
    args = [*QUICK, "--pairs", "--min_bytes", "8", "--max_bytes", "16K"]
    places = [("node-a", 0), ("node-a", 1), ("node-b", 0), ("node-c", 0)]
    environments = [{"DDPCTL_HOST": host, "LOCAL_RANK": str(local_rank)} for host, local_rank in places]
    done = forked(RANK.format(before="", args=args), *environments)
    assert (done.status, done.stderr) == (0, "")
    lines = json_lines(done.stdout)
    pairs, whole = lines[:3], lines[3:]
    assert [(line["pair"], line["ranks"]) for line in pairs] == [
        (["node-a", "node-b"], [0, 2]),
        (["node-a", "node-c"], [0, 3]),
        (["node-b", "node-c"], [2, 3]),
    ]
    assert [line["bytes"] for line in whole] == [12, 36, 132, 516, 2052, 8196, 16392]
    assert {(line["op"], line["backend"], line["world_size"]) for line in whole} == {("all_reduce", "gloo", 3)}
    assert all((line["bytes"], line["latency_us"] > 0) == (16384, True) for line in pairs)
    for line, factor in [*((line, 1.0) for line in pairs), *((line, 4 / 3) for line in whole)]:
        assert line["busbw_gb_s"] == pytest.approx(factor * line["bytes"] / line["time_us"] / 1e3, rel=0.01)
    rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
    assert [line.partition(": ")[0] for line in rounds] == ["round 1", "round 2", "round 3"]


FAULT = """
def faulty(*args, right=allreduce_bench.all_reduce):
    result = right(*args)
    result[-1] += int(args[0].rank == 1)
    return result
allreduce_bench.COLLECTIVES["all_reduce"] = faulty
"""


def test_a_wrong_sum_on_one_rank_ends_all() -> None:
    args = [*QUICK, "--max_bytes", "8"]
    done = forked(RANK.format(before=FAULT, args=args), {}, {}, {})
    assert done.status == 1
    assert json_lines(done.stdout) == []
    reason = "allreduce_bench: all_reduce of 12 bytes gave a wrong result on rank 1: run it again, and leave "
    assert sorted(line[: len(reason)] for line in done.stderr.splitlines()) == [reason] * 2, done.stderr
