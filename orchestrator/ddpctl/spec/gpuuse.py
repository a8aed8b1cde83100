"""The use of the GPUs of a run over its whole time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ddpctl.spec.bounds import Celsius, Flag, Integer, Moment, Percent, Real, Short, Small
from ddpctl.spec.times import elapsed

Megabytes = Annotated[Integer, Field(ge=0, le=1 << 40)]


@dataclass(frozen=True)
class RecordedGpu:
    """A GPU in one attempt, as its node has recorded it. ``GpuStretch`` and ``GpuUse`` explain the fields."""

    index: Small
    name: Short
    held: Flag
    every_s: Annotated[Real, Field(gt=0, le=1e9)]
    use: Annotated[tuple[Percent | None, ...], Field(max_length=1000)]
    memory_mb: Annotated[tuple[Megabytes | None, ...], Field(max_length=1000)]
    memory_total_mb: Megabytes | None
    memory_max_mb: Megabytes | None
    temperature_max: Celsius | None
    power_max_w: Annotated[Real, Field(ge=0, le=1e9)] | None


@dataclass(frozen=True)
class RecordedGpus:
    """The GPUs of a node in one attempt."""

    began: Moment
    gpus: Annotated[tuple[RecordedGpu, ...], Field(max_length=1000)]


@dataclass(frozen=True)
class GpuStretch:
    """A GPU in one attempt: means over periods of ``every_s`` seconds, the first of which starts at ``began``.

    ``use``: percent of the time in which the GPU had work. ``memory_mb``: MiB in use. ``None``: not known.
    """

    attempt: int
    began: str
    every_s: float
    use: tuple[float | None, ...]
    memory_mb: tuple[int | None, ...]


@dataclass(frozen=True)
class GpuUse:
    """A GPU over a run. ``held``: a rank was seen on the GPU; in a container this cannot be seen."""

    host: str
    index: int
    name: str
    held: bool
    memory_total_mb: int | None
    memory_max_mb: int | None
    temperature_max: float | None
    power_max_w: float | None
    attempts: tuple[GpuStretch, ...]

    @property
    def use(self) -> float | None:
        """Return the percent of the time in which the GPU had work; ``None``: never known."""
        known = [(value, part.every_s) for part in self.attempts for value in part.use if value is not None]
        seconds = sum(length for _, length in known)
        return sum(value * length for value, length in known) / seconds if known else None

    def to_json(self) -> dict[str, Any]:
        use = self.use
        return {
            "host": self.host,
            "index": self.index,
            "name": self.name,
            "held": self.held,
            "use": None if use is None else round(use, 1),
            "memory_total_mb": self.memory_total_mb,
            "memory_max_mb": self.memory_max_mb,
            "temperature_max": self.temperature_max,
            "power_max_w": self.power_max_w,
            "attempts": [vars(part) for part in self.attempts],
        }


def gpu_use(records: Mapping[str, Mapping[str, RecordedGpus]]) -> tuple[GpuUse, ...]:
    """Return the GPUs on which a rank was seen; all GPUs if no rank was seen on any.

    ``records``: host -> attempt -> its GPUs.
    """
    gpus = [gpu for host, attempts in records.items() for gpu in _of_host(host, attempts)]
    return tuple([gpu for gpu in gpus if gpu.held] or gpus)


def _of_host(host: str, attempts: Mapping[str, RecordedGpus]) -> Iterator[GpuUse]:
    seen: dict[int, list[tuple[GpuStretch, RecordedGpu]]] = {}
    for attempt, kept in sorted(attempts.items(), key=lambda item: int(item[0])):
        for gpu in kept.gpus:
            stretch = GpuStretch(int(attempt), kept.began, gpu.every_s, gpu.use, gpu.memory_mb)
            seen.setdefault(gpu.index, []).append((stretch, gpu))
    for index, parts in sorted(seen.items()):
        gpus = [gpu for _, gpu in parts]
        yield GpuUse(
            host,
            index,
            gpus[-1].name,
            held=any(gpu.held for gpu in gpus),
            memory_total_mb=gpus[-1].memory_total_mb,
            memory_max_mb=_most(gpu.memory_max_mb for gpu in gpus),
            temperature_max=_most(gpu.temperature_max for gpu in gpus),
            power_max_w=_most(gpu.power_max_w for gpu in gpus),
            attempts=tuple(stretch for stretch, _ in parts),
        )


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def mean_use(gpus: Sequence[GpuUse]) -> float | None:
    """Return the mean use of the GPUs with known use; ``None``: there is no such GPU."""
    known = [gpu.use for gpu in gpus if gpu.use is not None]
    return sum(known) / len(known) if known else None


def least_busy_first(gpus: Sequence[GpuUse]) -> list[GpuUse]:
    """Sort GPUs by use; GPUs with unknown use come last."""
    return sorted(gpus, key=lambda gpu: (gpu.use is None, gpu.use or 0.0))


def use_over_time(gpu: GpuUse, began: str, seconds: float, columns: int) -> list[float | None]:
    """Divide the ``seconds`` from ``began`` on into ``columns`` parts, and return the use in each.

    ``None``: not known.
    """
    sums = [0.0] * columns
    covered = [0.0] * columns
    for stretch in gpu.attempts:
        first = elapsed(began, stretch.began) or 0.0
        for number, value in enumerate(stretch.use):
            if value is None:
                continue
            left = (first + number * stretch.every_s) / seconds * columns
            right = left + stretch.every_s / seconds * columns
            for column in range(max(0, math.floor(left)), min(columns, math.ceil(right))):
                part = min(right, column + 1) - max(left, column)
                sums[column] += value * part
                covered[column] += part
    return [total / part if part > 0 else None for total, part in zip(sums, covered, strict=True)]
