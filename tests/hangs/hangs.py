"""The campaign of hangs: a plan, rounds one by one or some at once, and its report."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.hangs import report
from tests.hangs.campaign import TROUBLE, Labs, side_by_side, site_in
from tests.hangs.judge import Expected, Facts, findings
from tests.hangs.kinds import KINDS
from tests.hangs.look import py_spy
from tests.hangs.plan import Round, plan
from tests.hangs.play import Hang, keep_evidence, with_doctor, without_doctor
from tests.hangs.programs import program


def campaign(folder: Path, options: argparse.Namespace) -> bool:
    """True where something was wrong. ``folder`` gets the outputs of all commands, and the documents of each round."""
    results: list[Facts] = []
    rounds = plan(options.seed, options.number, options.only)[options.begin :]
    with Labs() as labs:

        def play(round: Round, began: float) -> None:
            facts = _play(labs, folder / f"round{round.number}", round, options)
            results.append(facts)
            print(_line(facts, time.monotonic() - began, options.programs), flush=True)

        side_by_side(rounds, play, options.jobs or 1)
    results.sort(key=lambda facts: facts.round.number)
    if options.programs:
        bad = [facts for facts in results if facts.trouble]
        print(f"\n{len(results)} programs, {len(bad)} did not do what they are meant to")
        return bool(bad)
    print("\n" + report.summary(_repeat(options), results))
    return any(findings(facts) for facts in results)


def _play(labs: Labs, place: Path, round: Round, options: argparse.Namespace) -> Facts:
    look = without_doctor(py_spy() or "py-spy") if options.programs else with_doctor
    hang: Hang | None = None
    try:
        with site_in(labs[round.hosts], place) as site:
            hang = Hang(site, round, options.stall)
            facts = hang.play(look, doctor=not options.programs)
    except TROUBLE as error:
        facts = hang.facts if hang else Facts(round, Expected.of(round, "", options.stall))
        facts.trouble.append(f"campaign: {error!r}")
    keep_evidence(facts, place / "evidence", program(round.frame, KINDS[round.kind].parts))
    return facts


def _line(facts: Facts, seconds: float, programs: bool) -> str:
    if not programs:
        return report.line(facts, seconds)
    return report.program_line(facts, seconds)


def _repeat(options: argparse.Namespace) -> str:
    return " ".join([f"--seed {options.seed}", *(["--only", *options.only] if options.only else [])])
