"""How busy the GPUs of a run were, over its whole time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.spec.times import elapsed


@dataclass(frozen=True)
class GpuStretch:
    """A GPU in one attempt. ``use``: percent of the time in which it had work, ``memory_mb``: MiB in use, each on
    average over ``every_s`` seconds from ``began`` on; None where that is not known."""

    attempt: int
    began: str
    every_s: float
    use: tuple[float | None, ...]
    memory_mb: tuple[int | None, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "began": self.began,
            "every_s": self.every_s,
            "use": list(self.use),
            "memory_mb": list(self.memory_mb),
        }


@dataclass(frozen=True)
class GpuUse:
    """One GPU over a run. ``held``: a rank was seen on it; in a container that cannot be seen."""

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
        """Percent of the time in which it had work; None where that was never known."""
        known = [(value, one.every_s) for one in self.attempts for value in one.use if value is not None]
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
            "attempts": [one.to_json() for one in self.attempts],
        }


def gpu_use(told: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[GpuUse, ...]:
    """``told``: host -> attempt -> what the worker kept of its GPUs. Those that a rank was seen on; all of them where
    none was."""
    found = [one for host, attempts in told.items() for one in _of_host(host, attempts)]
    return tuple([one for one in found if one.held] or found)


def _of_host(host: str, attempts: Mapping[str, Mapping[str, Any]]) -> Iterator[GpuUse]:
    seen: dict[int, list[tuple[GpuStretch, Mapping[str, Any]]]] = {}
    for attempt, kept in sorted(attempts.items(), key=lambda one: int(one[0])):
        for gpu in kept["gpus"]:
            series = tuple(gpu["use"]), tuple(gpu["memory_mb"])
            stretch = GpuStretch(int(attempt), kept["began"], gpu["every_s"], *series)
            seen.setdefault(gpu["index"], []).append((stretch, gpu))
    for index, parts in sorted(seen.items()):
        gpus = [gpu for _, gpu in parts]
        yield GpuUse(
            host,
            index,
            gpus[-1]["name"],
            held=any(gpu["held"] for gpu in gpus),
            memory_total_mb=gpus[-1]["memory_total_mb"],
            memory_max_mb=_most(gpu["memory_max_mb"] for gpu in gpus),
            temperature_max=_most(gpu["temperature_max"] for gpu in gpus),
            power_max_w=_most(gpu["power_max_w"] for gpu in gpus),
            attempts=tuple(stretch for stretch, _ in parts),
        )


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def mean_use(gpus: Sequence[GpuUse]) -> float | None:
    """Of those whose use is known; None without one."""
    known = [one.use for one in gpus if one.use is not None]
    return sum(known) / len(known) if known else None


def least_busy_first(gpus: Sequence[GpuUse]) -> list[GpuUse]:
    """By their use; those of which nothing is known come last."""
    return sorted(gpus, key=lambda one: (one.use is None, one.use or 0.0))


def over_time(gpu: GpuUse, began: str, seconds: float, columns: int) -> list[float | None]:
    """Its use in each of ``columns`` equal parts of the ``seconds`` from ``began`` on; None where it was not read."""
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
