"""Turns checks into questions, and answers into findings: the work that is the same for every check."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ddpctl.checks.base import Check, Requirements, Target, View
from ddpctl.checks.report import single_host
from ddpctl.errors import UsageError
from ddpctl.spec.finding import LEFT_OUT, Finding, Severity
from ddpctl.spec.fold import group_by, one_line
from ddpctl.spec.question import Answer, Question

_log = logging.getLogger(__name__)


def choose_checks(
    catalogue: Sequence[Check], only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """Return the checks to run and the checks left out, in catalogue order.

    A name is an id (``gpu.xid``) or its first part.

    Raises:
        UsageError: no check has a given name.
    """
    for name in (*only, *skip):
        if not any(_named(check, name) for check in catalogue):
            ids = [check.id for check in catalogue]
            close = difflib.get_close_matches(name, ids, 1, cutoff=0.4)
            hint = f"did you mean {close[0]}?" if close else f"the checks are {', '.join(ids)}"
            raise UsageError(f"no such check: {name!r}", hint=hint)
    run: list[Check] = []
    out: list[Check] = []
    for check in catalogue:
        asked_for = not only or any(_named(check, name) for name in only)
        left = any(_named(check, name) for name in skip)
        (run if asked_for and not left else out).append(check)
    return tuple(run), tuple(out)


def _named(check: Check, name: str) -> bool:
    return check.id == name or check.id.startswith(name + ".")


def collect_questions(checks: Iterable[Check], target: Target, want: Requirements) -> tuple[Question, ...]:
    """Return the questions for a host: each question once, with the longest deadline that a check gives it."""
    found: dict[str, Question] = {}
    for check in checks:
        for question in check.questions(target, want):
            known = found.get(question.key)
            if known is None or question.deadline > known.deadline:
                found[question.key] = question
    return tuple(found.values())


def judge_checks(checks: Iterable[Check], view: View, left_out: Iterable[Check] = ()) -> tuple[Finding, ...]:
    """Return every check's findings, in catalogue order.

    - A check that examined a host and found nothing is ``ok``, once for all hosts.
    - A question that a host could not answer is a warning or unknown, unless the check itself has a finding on that
      host.
    - A check that does not apply to a host is skipped there.
    """
    findings: list[Finding] = []
    for check in checks:
        own = _judged(check, view)
        own += _unanswered(check, view, {f.host for f in own})
        exempt = {host: why for host, why in _exempt(check, view).items() if host in view.answers}
        if _passed(check, view, own, exempt):
            own = [*own, Finding(check.id, Severity.OK, check.title)]
        findings += [*own, *_skipped(check, exempt)]
    findings += [
        Finding(check.id, Severity.SKIPPED, f"{check.title}: {LEFT_OUT}", on_request=True) for check in left_out
    ]
    return tuple(findings)


def _passed(check: Check, view: View, own: Sequence[Finding], exempt: Collection[str]) -> bool:
    """Return whether the check examined a host, and has no finding on any host."""
    if any(finding.severity is not Severity.UNKNOWN for finding in own):
        return False
    unseen = {host for finding in own for host in finding.hosts}
    return any(
        target.name not in unseen and target.name not in exempt and _answered(check, view, target)
        for target in view.targets
    )


def _skipped(check: Check, exempt: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each reason, for all hosts to which the check does not apply for that reason."""
    return [
        Finding(
            check.id,
            Severity.SKIPPED,
            f"not applicable: {why}",
            host=single_host(names),
            evidence={"hosts": names} if len(names) > 1 else {},
        )
        for why, names in group_by(lambda host: exempt[host], exempt).items()
    ]


def _exempt(check: Check, view: View) -> Mapping[str, str]:
    """Return where the check does not apply. An unreadable answer exempts no host: the verdict reports it."""
    try:
        return check.exempt(view)
    except Exception:
        rest = _of(view, {host for host in view.answers if _fault(check.exempt, _of(view, {host})) is None})
        return check.exempt(rest) if _fault(check.exempt, rest) is None else {}


def _judged(check: Check, view: View) -> list[Finding]:
    """Return the check's findings.

    An answer that the check cannot read is a finding of its host, and does not hide the findings of the other hosts.
    """
    try:
        return check.findings(view)
    except Exception as error:
        _log.debug("%s cannot be judged", check.id, exc_info=error)
    faults = {host: _fault(check.findings, _of(view, {host})) for host in view.answers}
    bad: dict[str | None, Exception] = {host: fault for host, fault in faults.items() if fault is not None}
    rest = _of(view, set(view.answers) - set(bad))
    fault = _fault(check.findings, rest)
    if fault is not None:  # no single answer is the cause
        bad[None] = fault
    found = check.findings(rest) if fault is None else []
    return [*found, *(_unreadable(check, host, error) for host, error in bad.items())]


def _of(view: View, hosts: Collection[str]) -> View:
    """Return the view with the answers of these hosts only."""
    answers = {host: answer for host, answer in view.answers.items() if host in hosts}
    rules = {host: dump for host, dump in view.firewalls.items() if host in hosts}
    return replace(view, answers=answers, firewalls=rules)


def _fault(read: Callable[[View], object], view: View) -> Exception | None:
    try:
        read(view)
    except Exception as error:
        return error
    return None


def _unreadable(check: Check, host: str | None, error: Exception) -> Finding:
    words = one_line(str(error))[:200]
    return Finding(
        check.id,
        Severity.ERROR,
        f"{check.title} could not be judged: its answer cannot be read ({type(error).__name__}: {words})",
        host=host,
        fix=f"run `ddpctl preflight --only {check.id} --debug` to see why",
    )


def _unanswered(check: Check, view: View, said: Collection[str | None]) -> list[Finding]:
    found: list[Finding] = []
    for target in view.targets:
        if target.name in said:
            continue
        for question in check.questions(target, view.requirements):
            answer = view.answer(target.name, question)
            if answer is not None and not answer.ok:
                found.append(_no_answer(check, target, question, answer))
                break
    return found


def _no_answer(check: Check, target: Target, question: Question, answer: Answer) -> Finding:
    """Return the finding: a warning for a late answer, which is a sign of trouble; unknown for a failed answer."""
    return Finding(
        check.id,
        Severity.WARNING if answer.timed_out else Severity.UNKNOWN,
        f"{'could not be checked' if answer.timed_out else 'not checked'}: {answer.error}",
        host=target.name,
        fix=f"run `ddpctl preflight --only {check.id} --debug` to see why",
        evidence={"question": question.key, "error": answer.error, "timed_out": answer.timed_out},
    )


def _answered(check: Check, view: View, target: Target) -> bool:
    return any(
        (answer := view.answer(target.name, question)) is not None and answer.ok
        for question in check.questions(target, view.requirements)
    )
