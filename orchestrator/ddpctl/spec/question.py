"""The questions of preflight to the nodes (the worker's verb ``probe``), and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.spec.bounds import Flag, Number, Plain, Short
from ddpctl.spec.limits import QUESTION_S


@dataclass(frozen=True)
class Question:
    """A fact of the worker by name, its parameters, and a deadline in seconds.

    Checks that ask the same question share the answer. ``key`` identifies it: name and parameters.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = QUESTION_S

    @property
    def key(self) -> str:
        if not self.params:
            return self.name
        return self.name + ":" + ",".join(f"{k}={self.params[k]!r}" for k in sorted(self.params))


@dataclass(frozen=True)
class Answer:
    """The answer of a host: ``value`` if ok, otherwise ``error``; ``timed_out``: the deadline passed."""

    ok: Flag
    value: Plain = None
    error: Short | None = None
    timed_out: Flag = False
    seconds: Number = 0.0


def probe_questions(asked: Iterable[Question]) -> list[dict[str, Any]]:
    """Return the argument ``questions`` of the verb ``probe``."""
    return [{"id": q.key, "name": q.name, "params": dict(q.params), "deadline": q.deadline} for q in asked]
