"""How busy the GPUs of a run were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.gpuuse import (
    GpuStretch,
    GpuUse,
    RecordedGpu,
    RecordedGpus,
    gpu_use,
    least_busy_first,
    mean_use,
    use_over_time,
)

BEGAN = "2026-11-24T03:00:00Z"
LATER = "2026-11-24T03:01:00Z"


def kept(*uses: float | None, index: int = 0, held: bool = True, every_s: float = 10.0) -> RecordedGpu:
    return RecordedGpu(
        index,
        "H100",
        held,
        every_s,
        uses,
        memory_mb=tuple(5 for _ in uses),
        memory_total_mb=80,
        memory_max_mb=int(max((use for use in uses if use is not None), default=0)),
        temperature_max=None,
        power_max_w=300.0,
    )


def of_attempt(*gpus: RecordedGpu, began: str = BEGAN) -> RecordedGpus:
    return RecordedGpus(began, gpus)


def test_attempts_of_a_gpu_are_put_together() -> None:
    second = of_attempt(kept(30.0, every_s=20.0), began=LATER)
    (found,) = gpu_use({"node0": {"2": second, "1": of_attempt(kept(90.0, None, 60.0))}})
    assert [(one.attempt, one.use) for one in found.attempts] == [(1, (90.0, None, 60.0)), (2, (30.0,))]
    assert found.use == pytest.approx((90 + 60 + 2 * 30) / 4)
    assert (found.memory_max_mb, found.temperature_max, found.power_max_w) == (90, None, 300.0)


def test_only_those_of_the_run_where_any_is_known_to_be() -> None:
    told: dict[str, dict[str, RecordedGpus]] = {
        "node0": {"1": of_attempt(kept(1.0, held=False), kept(2.0, index=1))},
        "node1": {},
    }
    assert [(one.host, one.index) for one in gpu_use(told)] == [("node0", 1)]
    told = {"node0": {"1": of_attempt(kept(1.0, held=False), kept(2.0, index=1, held=False))}}
    assert [one.index for one in gpu_use(told)] == [0, 1]
    assert gpu_use({}) == ()


def test_the_least_busy_first_and_the_unknown_last() -> None:
    told = {"node0": {"1": of_attempt(kept(), kept(80.0, index=1), kept(0.0, index=2))}}
    gpus = gpu_use(told)
    assert [one.index for one in least_busy_first(gpus)] == [2, 1, 0]
    assert mean_use(gpus) == 40.0
    assert mean_use(gpus[:1]) is None


def test_over_time() -> None:
    (found,) = gpu_use({"node0": {"1": of_attempt(kept(90.0, None, 60.0)), "2": of_attempt(kept(30.0), began=LATER)}})
    assert use_over_time(found, BEGAN, 80.0, 8) == [90.0, None, 60.0, None, None, None, 30.0, None]
    assert use_over_time(found, BEGAN, 80.0, 2) == [75.0, 30.0]
    assert use_over_time(found, LATER, 20.0, 2) == [30.0, None]


@given(
    st.lists(st.none() | st.floats(0, 100), max_size=30),
    st.floats(0.1, 1e6),
    st.floats(1, 1e7),
    st.integers(1, 200),
)
def test_any_series_fits_any_picture(uses: list[float | None], every_s: float, seconds: float, columns: int) -> None:
    stretch = GpuStretch(1, LATER, every_s, tuple(uses), tuple(None for _ in uses))
    gpu = GpuUse("node0", 0, "H100", True, None, None, None, None, (stretch,))
    found = use_over_time(gpu, BEGAN, seconds, columns)
    assert len(found) == columns
    known = [use for use in uses if use is not None]
    assert all(min(known) - 1e-6 <= value <= max(known) + 1e-6 for value in found if value is not None)
