"""Whole machines, constructed: every answer of a host to every question of the catalogue, and the findings about it.

why       what the machine is, in one line
base      the machine it is made from; the values here are laid over it, key by key
targets   as in a case (case.py)
want      the fields of a Requirements
answers   as in a case. A question's name stands for any of its parameters. HOST and RANK are the host's; a list under
          "stdout" is its lines; {"!sub": [[old, new], ...]} changes the text of the base
faults    name -> what is laid over the machine, with "findings": each [severity, check, host, words of the message,
          words of the command]. Without a fault there is no finding

All errors and warnings are listed; of the findings about failed looks, only the findings that a fault names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddpctl.checks.base import Target, Timing, View
from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.checks.judge import collect_questions
from ddpctl.spec.question import Answer, Question
from ddpctl.stages.preflight import _facts_questions
from ddpctl.transport.shapes.adapters import adapter
from ddpctl.transport.shapes.preflight import FACTS
from tests.checks.case import merged, mesh_of, view_of

MACHINES = Path(__file__).with_name("machines")


@dataclass(frozen=True)
class Machine:
    """A machine in a single state: ``fault`` is "" for a healthy machine."""

    name: str
    fault: str
    view: View
    findings: tuple[tuple[str, ...], ...]


NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))


def machines(name: str) -> Iterator[Machine]:
    """A machine in each of its states: first healthy, then with each of its faults."""
    whole = read(name)
    yield Machine(name, "", view(whole), ())
    for fault, change in whole.get("faults", {}).items():
        expected = tuple(tuple(one) for one in change["findings"])
        yield Machine(name, fault, view(over(whole, change)), expected)


def read(name: str) -> dict[str, Any]:
    own: dict[str, Any] = json.loads((MACHINES / f"{name}.json").read_text())
    return over(read(own["base"]), own) if "base" in own else own


def over(whole: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A machine with the values in ``change`` in place of its own; its faults are not the change's."""
    answers: dict[str, Any] = whole["answers"]
    for host in ("*", *(host for host in change.get("answers", {}) if host != "*")):
        answers = {**answers, host: merged(answers.get(host, {}), change.get("answers", {}).get(host, {}))}
    return {
        "why": change.get("why", whole["why"]),
        "targets": change.get("targets", whole["targets"]),
        "want": {**whole["want"], **change.get("want", {})},
        "answers": answers,
        "faults": change.get("faults", {}),
    }


def view(whole: dict[str, Any]) -> View:
    """The machine's hosts, each with an answer to all that it is asked, as the transport takes it."""
    case = {key: whole[key] for key in ("targets", "want", "answers")}
    seen = view_of(case)
    answers = {target.name: _asked(seen, target, rank) for rank, target in enumerate(seen.targets)}
    still = {target.name: Timing(0.0, 0.0, 0.0, 0.0) for target in seen.targets}
    fabric = {target.name: [target.address, _interface(answers[target.name], target)] for target in seen.targets}
    mesh = mesh_of(seen.targets, {"fabric": fabric})
    return replace(seen, answers=answers, timings=still, mesh=mesh)


def _interface(told: Mapping[str, Answer], target: Target) -> str:
    (network,) = (answer.value for key, answer in told.items() if key.partition(":")[0] == "network")
    return next(str(one["interface"]) for one in network["addresses"] if one["address"] == target.address)


def _asked(seen: View, target: Target, rank: int) -> dict[str, Answer]:
    told = seen.answers[target.name]
    wanted = (*collect_questions(CATALOGUE, target, seen.requirements), *_facts_questions(target, seen.requirements))
    return {question.key: _filled(told, question, target.name, rank) for question in wanted}


def _filled(told: Any, question: Question, host: str, rank: int) -> Answer:
    name = question.name
    assert question.key in told or name in told, f"{host} does not answer {question.key}"
    value = _text(told.get(question.key, told.get(name)).value, host, rank)
    if name in FACTS:
        adapter(FACTS[name]).validate_python(value)
    return Answer(True, value)


def _text(value: Any, host: str, rank: int) -> Any:
    """The value with the host's own name and number, and every "stdout" as a text."""
    if isinstance(value, dict):
        return {key: _text(_lines(key, one), host, rank) for key, one in value.items()}
    if isinstance(value, list):
        return [_text(one, host, rank) for one in value]
    return value.replace("HOST", host).replace("RANK", str(rank)) if isinstance(value, str) else value


def _lines(key: str, value: Any) -> Any:
    return "".join(f"{line}\n" for line in value) if key == "stdout" and isinstance(value, list) else value
