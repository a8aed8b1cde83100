"""From the catalogue to questions, and from answers to findings: what is the same for every check, done once."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ddpctl.checks.base import Check, Target, View, Want
from ddpctl.checks.report import only
from ddpctl.errors import UsageError
from ddpctl.spec.finding import LEFT_OUT, Finding, Severity
from ddpctl.spec.fold import by, one_line
from ddpctl.spec.question import Answer, Question

_log = logging.getLogger(__name__)


def chosen(
    catalogue: Sequence[Check], only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The checks to run and those left out, in catalogue order. A name is an id (``gpu.xid``) or its first part.

    Raises:
        UsageError: a name that no check has.
    """
    for name in (*only, *skip):
        if not any(_named(check, name) for check in catalogue):
            ids = [check.id for check in catalogue]
            near = difflib.get_close_matches(name, ids, 1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"the checks are {', '.join(ids)}"
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


def questions(checks: Iterable[Check], target: Target, want: Want) -> tuple[Question, ...]:
    """What one host is asked for all checks: each question once, with the longest deadline any check gives it."""
    found: dict[str, Question] = {}
    for check in checks:
        for question in check.questions(target, want):
            known = found.get(question.key)
            if known is None or question.deadline > known.deadline:
                found[question.key] = question
    return tuple(found.values())


def verdicts(checks: Iterable[Check], view: View, left_out: Iterable[Check] = ()) -> tuple[Finding, ...]:
    """Every check's findings, in catalogue order.

    A check that was looked at on some host and found nothing is ``ok``, once. One that a host could not answer is a
    warning or unknown there, unless the check itself already says something about that host. Where it does not apply it
    is skipped.
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
    """Whether some host was looked at, and nothing was found on any."""
    if any(finding.severity is not Severity.UNKNOWN for finding in own):
        return False
    unseen = {host for finding in own for host in finding.hosts}
    return any(
        target.name not in unseen and target.name not in exempt and _answered(check, view, target)
        for target in view.targets
    )


def _skipped(check: Check, exempt: Mapping[str, str]) -> list[Finding]:
    """One finding for all hosts to which the check does not apply for one reason."""
    return [
        Finding(
            check.id,
            Severity.SKIPPED,
            f"not applicable: {why}",
            host=only(names),
            evidence={"hosts": names} if len(names) > 1 else {},
        )
        for why, names in by(lambda host: exempt[host], exempt).items()
    ]


def _exempt(check: Check, view: View) -> Mapping[str, str]:
    """Where the check does not apply. An answer that cannot be read exempts nobody: the verdict says so."""
    try:
        return check.exempt(view)
    except Exception:
        rest = _of(view, {host for host in view.answers if _fault(check.exempt, _of(view, {host})) is None})
        return check.exempt(rest) if _fault(check.exempt, rest) is None else {}


def _judged(check: Check, view: View) -> list[Finding]:
    """The check's findings. An answer that it cannot read is a finding of its host, and hides nobody else's."""
    try:
        return check.findings(view)
    except Exception as error:
        _log.debug("%s cannot be judged", check.id, exc_info=error)
    told = {host: _fault(check.findings, _of(view, {host})) for host in view.answers}
    bad: dict[str | None, Exception] = {host: fault for host, fault in told.items() if fault is not None}
    rest = _of(view, set(view.answers) - set(bad))
    fault = _fault(check.findings, rest)
    if fault is not None:  # no single answer does it
        bad[None] = fault
    found = check.findings(rest) if fault is None else []
    return [*found, *(_unreadable(check, host, error) for host, error in bad.items())]


def _of(view: View, hosts: Collection[str]) -> View:
    """The answers of these hosts."""
    told = {host: answer for host, answer in view.answers.items() if host in hosts}
    rules = {host: dump for host, dump in view.firewalls.items() if host in hosts}
    return replace(view, answers=told, firewalls=rules)


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
        for question in check.questions(target, view.want):
            answer = view.answer(target.name, question)
            if answer is not None and not answer.ok:
                found.append(_no_answer(check, target, question, answer))
                break
    return found


def _no_answer(check: Check, target: Target, question: Question, answer: Answer) -> Finding:
    """A question that a host does not answer in time is a sign of trouble there; one that fails is only unknown."""
    return Finding(
        check.id,
        Severity.WARNING if answer.timed_out else Severity.UNKNOWN,
        f"{'could not be checked' if answer.timed_out else 'not checked'}: {answer.error}",
        host=target.name,
        fix=f"run `ddpctl preflight --only {check.id} --debug` to see why",
        evidence={"question": question.key, "error": answer.error, "timed_out": answer.timed_out},
    )


def _answered(check: Check, view: View, target: Target) -> bool:
    """Whether the host answered one of the check's questions."""
    return any(
        (answer := view.answer(target.name, question)) is not None and answer.ok
        for question in check.questions(target, view.want)
    )
