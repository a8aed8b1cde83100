"""A recorded cluster as a JSON file: the answers of the hosts, and the findings that a check must have.

why       the situation, in one line
targets   names, or objects with a Target's fields; left out: node0 and node1
want      fields of Requirements (ddpctl/checks/base.py)
answers   host or "*" -> question key -> the value, of which only the keys that the check reads are needed;
          {"!": text} is an error, {"!timeout": text} a deadline that passed.
          The values of "*" hold for every host. A host's own values replace them key by key. A host without GPUs of
          its own gets the GPUs of "*" with other UUIDs
errors    host -> [class of ddpctl.errors, message, kind or null, hint or null]; kind and hint may be left out
timings   host -> [asked, received, sent, answered]
findings  each {"severity", "host", "says": [words of the message]}, and perhaps "fix" and "command": words of them;
          beside these a check may report ok findings only
mesh      the dials between the nodes; left out: every node reached every node on the fabric addresses given here
          fabric: host -> [address, interface]; dials: [[dialer, peer, status, local address, its interface]] in place
          of successful dials; neighbours: host -> [limit, entries, overflows]
rehearsal host -> its report of the rehearsal
slots     host -> its answer to the question for slots, or an error as in ``errors``
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from ddpctl import errors
from ddpctl.checks.base import Check, Requirements, Target, Timing, View
from ddpctl.checks.host import MACHINE
from ddpctl.checks.judge import collect_questions, judge_checks
from ddpctl.checks.mesh import network_question
from ddpctl.checks.python import live_question, versions_question
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.imports import Import, Imports
from ddpctl.spec.mesh import OK, Dial, Fabric, Mesh, Neighbours, Speed
from ddpctl.spec.origin import JobId
from ddpctl.spec.question import Answer
from ddpctl.spec.slots import HostSlots
from ddpctl.spec.source import SourceFault
from tests.values import value_of

CASES = Path(__file__).with_name("cases")


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text())
    unknown = set(case) - {
        "why",
        "targets",
        "want",
        "answers",
        "errors",
        "timings",
        "mesh",
        "rehearsal",
        "slots",
        "findings",
    }
    assert not unknown, f"{path}: {unknown}"
    return case


def view_of(case: dict[str, Any]) -> View:
    """The recorded cluster as checks see it."""
    targets = tuple(_target(one) for one in case.get("targets", ["node0", "node1"]))
    recorded = case.get("answers", {})
    failed = {host: _error(host, *told) for host, told in case.get("errors", {}).items()}
    answers = {
        name: {key: _answer(value) for key, value in _over(_for_all(recorded, name, rank), recorded.get(name, {}))}
        for rank, name in enumerate(target.name for target in targets)
        if name not in failed
    }
    timings = {host: Timing(*moments) for host, moments in case.get("timings", {}).items()}
    mesh = mesh_of(targets, case["mesh"]) if "mesh" in case else None
    want = _want(case.get("want", {}))
    slots = {host: _slots(host, answer) for host, answer in case.get("slots", {}).items()}
    return View(targets, want, answers, failed, timings, mesh=mesh, rehearsal=case.get("rehearsal"), slots=slots)


def findings_of(check: Check, case: dict[str, Any]) -> list[Finding]:
    """The findings of the check, without its ok findings."""
    return [finding for finding in judge_checks([check], view_of(case)) if finding.severity is not Severity.OK]


def unasked(check: Check, case: dict[str, Any]) -> set[str]:
    """Recorded answers to questions that the check never asks: a slip in the case."""
    view = view_of(case)
    asked = {
        question.key for target in view.targets for question in collect_questions([check], target, view.requirements)
    }
    for target in view.targets:  # asked whichever checks run: any check may read the answers
        known = [ask(target, view.requirements).key for ask in (network_question, versions_question, live_question)]
        asked |= {*known, MACHINE.key}
    return {key for given in view.answers.values() for key in given} - asked


def _for_all(recorded: dict[str, Any], host: str, rank: int) -> dict[str, Any]:
    """The values under "*", with UUIDs of its own for each host's GPUs unless the host names them itself."""
    text = json.dumps(recorded.get("*", {}))
    own = "GPU-" in json.dumps(recorded.get(host, {}))
    made: dict[str, Any] = json.loads(text if own else re.sub(r"GPU-[0-9a-f]{2}", f"GPU-{rank:02x}", text))
    return made


def _over(base: dict[str, Any], own: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, merged(base.get(key), own.get(key, ...))) for key in {**base, **own}]


def merged(base: Any, own: Any) -> Any:
    if own is ...:
        return base
    if isinstance(own, dict) and "!sub" in own and base is not None:
        return _changed("".join(f"{line}\n" for line in base) if isinstance(base, list) else base, own["!sub"])
    if isinstance(base, dict) and isinstance(own, dict) and "!" not in own and "!timeout" not in own:
        return {key: merged(base.get(key), own.get(key, ...)) for key in {**base, **own}}
    return own


def _changed(text: str, pairs: list[list[str]]) -> str:
    for old, new in pairs:
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, new)
    return text


def _answer(value: Any) -> Answer:
    if isinstance(value, dict) and "!timeout" in value:
        return Answer(False, error=value["!timeout"], timed_out=True, seconds=20.0)
    if isinstance(value, dict) and "!" in value:
        return Answer(False, error=value["!"])
    return Answer(True, value)


def _target(given: str | dict[str, Any]) -> Target:
    keys = {"name": given} if isinstance(given, str) else given
    filled = {
        "address": keys["name"],
        "python": "python3",
        "base_dir": "~/ddpctl",
        "nproc": 2,
    } | keys
    return Target(**filled)


def _want(given: dict[str, Any]) -> Requirements:
    tuples = {field.name for field in fields(Requirements) if "tuple" in str(field.type)}
    made: dict[str, Any] = {key: tuple(value) if key in tuples else value for key, value in given.items()}
    if "job" in made:
        made["job"] = JobId("lab", "exp", made["job"])
    if "imports" in made:
        made["imports"] = _imports(made["imports"])
    return Requirements(**made)


def _imports(given: dict[str, Any]) -> Imports:
    """``statements``: a list, each ["train.py:3", "import timm", its guard or null]; the rest as its fields."""
    statements = [(where.rpartition(":"), text, *guard) for where, text, *guard in given.get("statements", [])]
    faults = [{**one, "below": tuple(one["below"]) if one.get("below") else None} for one in given.get("faults", [])]
    return Imports(
        tuple(Import(text, place[0], int(place[2]), *guard) for place, text, *guard in statements),
        tuple(SourceFault(**one) for one in faults),
        given.get("certain", True),
        tuple(given.get("unread", [])),
    )


def mesh_of(targets: tuple[Target, ...], given: dict[str, Any]) -> Mesh:
    """Every pair, on a single sampled port."""
    hosts = tuple(target.name for target in targets)
    fabric = {host: Fabric(*given["fabric"][host]) for host in hosts if host in given["fabric"]}
    seen = {(one[0], one[1]): one[2:] for one in given.get("dials", [])}
    dials = []
    for pair in ((a, b) for a in hosts for b in hosts if a != b and a in fabric and b in fabric):
        status, local, interface = seen.get(pair, [OK, fabric[pair[0]].address, fabric[pair[0]].interface])
        dials.append(Dial(*pair, fabric[pair[1]].address, 40000, status, local=local, interface=interface))
    return Mesh(
        hosts,
        hosts[0],
        29500,
        fabric,
        tuple(dials),
        tuple(Speed(dial.dialer, dial.peer, 0.2, 9400.0, 9400.0) for dial in dials if dial.status == OK),
        ports={host: {40000: "sample"} for host in hosts},
        scheduled=frozenset((a, b) for a in hosts for b in hosts if a != b),
        neighbours={host: Neighbours(*table) for host, table in given.get("neighbours", {}).items()},
    )


def _slots(host: str, answer: Any) -> HostSlots | errors.RemoteError:
    if isinstance(answer, list):
        error = _error(host, *answer)
        assert isinstance(error, errors.RemoteError)
        return error
    found: HostSlots = value_of(HostSlots, answer)
    return found


def _error(host: str, name: str, message: str, kind: str | None = None, hint: str | None = None) -> errors.DdpctlError:
    made = getattr(errors, name)
    found: errors.DdpctlError = made(message, host=host, hint=hint, **({"kind": kind} if kind else {}))
    return found
