"""The samples of each rank: an exact partition, for any number of samples and ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lazy import Lazy

from .conftest import Interpreter, both_interpreters

torch = Lazy("torch")
common = Lazy("common")
job = Lazy("sampler")


def shares_of(world_size: int, *args: str, forget: bool = False) -> tuple[Any, Any]:
    """The arguments, and the shares of all ranks: (ranks, epochs, samples of a rank)."""
    parsed = job.parse_args(list(args))
    return parsed, torch.stack([job.share(parsed, rank, world_size, forget) for rank in range(world_size)])


@given(world_size=st.integers(1, 9), more=st.integers(0, 60), drop_last=st.booleans())
@settings(max_examples=60)
def test_the_shares_are_a_partition(world_size: int, more: int, drop_last: bool) -> None:
    samples = world_size + more
    flags = ["--drop_last"] if drop_last else []
    args, shares = shares_of(world_size, "--samples", str(samples), *flags)
    rest = samples % world_size
    lines = job.table(args, shares)
    for epoch in range(2):
        counts = Counter(sample for rank in range(world_size) for sample in shares[rank, epoch].tolist())
        twice = sorted(sample for sample, count in counts.items() if count == 2)
        assert set(counts.values()) <= {1, 2}
        assert len(counts) == (samples - rest if drop_last else samples)
        assert set(counts) <= set(range(samples))
        assert len(twice) == (0 if drop_last or not rest else world_size - rest)
        said = job.check(job.orders(shares)[epoch], samples, world_size, drop_last)
        assert (sorted(said[0]), said[1]) == (twice, sorted(set(range(samples)) - set(counts)))
    assert sum("every sample exactly once" in line or "no sample twice" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("order", "drop_last"),
    [
        ([0, 1, 2, 3, 4, 4], False),  # 4 twice, and 5 not at all
        ([0, 1, 2, 3, 4, 6], False),  # no such sample
        ([0, 1, 2, 3, 4], False),  # a single rank has a sample less
        ([0, 1, 2, 3, 4, 5, 0, 1], False),  # a round too many
        ([0, 1, 2, 2], True),
        ([0, 1, 2, 3], True),  # two samples more could have been given out
    ],
)
def test_a_wrong_partition_is_noticed(order: list[int], drop_last: bool) -> None:
    with pytest.raises(common.JobError, match="the shares of 2 ranks are no partition of 6 samples"):
        job.check(torch.tensor(order), 6, 2, drop_last)


def test_one_sample_too_few_is_given_out_twice() -> None:
    args, shares = shares_of(2, "--samples", "91")
    assert shares.shape == (2, 2, 46)
    first, last = int(shares[0, 0, 0]), int(shares[1, 0, -1])
    assert first == last
    assert f"    0   all  every sample exactly once, but twice: {first} (ranks 0 and 1)" in job.table(args, shares)


def test_drop_last_names_what_is_left_out() -> None:
    args, shares = shares_of(2, "--samples", "91", "--drop_last")
    assert shares.shape == (2, 2, 45)
    (missing,) = set(range(91)) - set(shares[:, 0].flatten().tolist())
    assert f"    0   all  no sample twice; left out: {missing}" in job.table(args, shares)


def test_without_set_epoch_every_epoch_has_one_order() -> None:
    remembered, forgotten = (job.orders(shares_of(2, "--epochs", "3", forget=forget)[1]) for forget in (False, True))
    assert torch.equal(forgotten, forgotten[:1].expand(3, 90))
    assert torch.equal(forgotten[0], remembered[0])
    assert job.compare(remembered, forgotten) == ["orders in 3 epochs: 3 with set_epoch, 1 without it"]


def test_the_last_step_may_be_smaller() -> None:
    args, shares = shares_of(2, "--samples", "90", "--batch_size", "20")
    assert job.table(args, shares)[:3] == [
        "90 samples, world size 2: 45 samples for each rank",
        "batch size 20, global batch size 20 x 2 = 40",
        "3 steps an epoch, 10 samples in the last one",
    ]


def test_fewer_samples_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "join", lambda args: common.Place(0, 0, 4, torch.device("cpu")))
    with pytest.raises(common.Refused, match=r"^3 samples are too few for 4 ranks: .* at least --samples 4$"):
        job.main(["--samples", "3"])


@pytest.mark.parametrize("given", [["--samples", "0"], ["--batch_size", "0"], ["--epochs", "1"]])
def test_bad_arguments_are_usage_errors(given: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        job.parse_args(given)
    assert ended.value.code == 2
    assert f"{given[1]} is not between" in capsys.readouterr().err


@pytest.mark.torch
@both_interpreters("tests/jobs/test_sampler.py::test_two_ranks_print_one_table")
def test_two_ranks_print_one_table(interpreter: Interpreter) -> None:
    done = interpreter.launch(2, "sampler.py", "--samples", "91")
    assert done.status == 0, done.stderr
    args, shares = shares_of(2, "--samples", "91")
    forgotten = shares_of(2, "--samples", "91", forget=True)[1]
    expected = [*job.table(args, shares), *job.compare(job.orders(shares), job.orders(forgotten))]
    assert done.stdout.splitlines() == expected
