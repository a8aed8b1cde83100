"""Tries the imports of the job's script on the nodes, once its text or its environment is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpctl.checks import judge
from ddpctl.checks.base import Check, Requirements, Target, View
from ddpctl.checks.job_imports import IMPORTS, script_imports
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.finding import Finding
from ddpctl.spec.push import EnvironmentOutcome
from ddpctl.spec.question import Question
from ddpctl.stages.launch import Launch
from ddpctl.stages.probe import probe
from ddpctl.transport.base import Fleet

STAGE = "imports"


def with_script_on_nodes(view: View, checks: Sequence[Check], fleet: Fleet, tell: Tell) -> View:
    """Return ``view`` with the imports of a script that lies only on the nodes, which sent its text in the probe."""
    found = script_imports(view) if view.requirements.imports is None else None
    return (
        view
        if found is None
        else _asked(replace(view, requirements=replace(view.requirements, imports=found)), checks, fleet, tell)
    )


def try_imports(launch: Launch, environment: EnvironmentOutcome, fleet: Fleet, tell: Tell) -> tuple[Finding, ...]:
    """Return the findings about the script's imports in the managed environment, now installed on all hosts."""
    hosts, job = launch.hosts, launch.job
    targets = tuple(replace(target, environment=environment.python(target.name)) for target in Target.all(hosts, job))
    want = Requirements.of(launch.inventory, job, hosts, launch.imports)
    view = View(targets, want, {host.name: {} for host in hosts})
    return judge.judge_checks((IMPORTS,), _asked(view, (IMPORTS,), fleet, tell))


def _asked(view: View, checks: Sequence[Check], fleet: Fleet, tell: Tell) -> View:
    """Return the view with the answers that these checks lack. A host without any answer is unreachable."""
    questions: dict[str, list[Question]] = {}
    for target in view.targets:
        own = view.answers.get(target.name)
        asked = judge.collect_questions(checks, target, view.requirements) if own is not None else ()
        if new := [question for question in asked if question.key not in (own or {})]:
            questions[target.name] = new
    if not questions:
        return view
    tell(StageStarted(STAGE, len(questions)))
    probed = probe(questions, fleet, on_done=counting(STAGE, len(questions), tell))
    tell(StageEnded(STAGE, not probed.errors))
    answers = {host: {**earlier, **probed.answers.get(host, {})} for host, earlier in view.answers.items()}
    return replace(view, answers=answers, errors={**view.errors, **probed.errors})
