"""Asks hosts the questions of checks; a single call per host answers all its questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpctl.checks.base import Timing
from ddpctl.errors import DdpctlError
from ddpctl.spec.question import Answer, Question, probe_questions
from ddpctl.stages.limits import PROBE_SLACK_S
from ddpctl.transport.base import Fleet, Transport


@dataclass
class Probed:
    """The answers of hosts, by question key. Each host that was asked is in ``answers`` or in ``errors``."""

    answers: dict[str, Mapping[str, Answer]] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)


def probe(
    questions: Mapping[str, Sequence[Question]],
    fleet: Fleet,
    *,
    on_done: Callable[[str, object], None] | None = None,
    also: Callable[[Transport], None] = lambda transport: None,
) -> Probed:
    """Ask each host its own ``questions``, and call ``also`` for each host that answered."""
    probed = Probed()

    def ask(transport: Transport) -> Mapping[str, Answer]:
        own = questions[transport.host]
        deadline = max((question.deadline for question in own), default=0.0)
        start = time.time()
        reply = transport.call("probe", {"questions": probe_questions(own)}, timeout=deadline + PROBE_SLACK_S)
        probed.timings[transport.host] = Timing(start, reply["received"], reply["sent"], time.time())
        also(transport)
        answers: Mapping[str, Answer] = reply["answers"]
        return answers

    outcome = fleet.map(ask, list(questions), on_done=on_done)
    probed.answers, probed.errors = dict(outcome.results), dict(outcome.errors)
    return probed
