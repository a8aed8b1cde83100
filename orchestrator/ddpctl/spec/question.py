"""What the nodes are asked by the worker's ``probe`` verb, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.spec.limits import QUESTION_S


@dataclass(frozen=True)
class Question:
    """A question's name there, its parameters, and a deadline in seconds.

    Two checks that ask the same thing share one answer: ``key`` is name plus parameters.
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
    """What a host answered: ``value`` when ok, otherwise ``error`` (and ``timed_out`` when the deadline passed)."""

    ok: bool
    value: Any = None
    error: str | None = None
    timed_out: bool = False
    seconds: float = 0.0


def as_request(asked: Iterable[Question]) -> list[dict[str, Any]]:
    """The ``questions`` of a ``probe``."""
    return [{"id": q.key, "name": q.name, "params": dict(q.params), "deadline": q.deadline} for q in asked]


def as_answers(reply: Mapping[str, Any]) -> dict[str, Answer]:
    """The ``answers`` of its reply, by question key."""
    return {key: Answer(**answer) for key, answer in reply["answers"].items()}
