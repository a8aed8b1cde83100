"""``python -m tests.chaos --seed S --number N``: see the package."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import catalogue, healthy, report
from tests.chaos.campaign import Campaign
from tests.chaos.plan import Round, one_round, plan
from tests.lab import missing


def main() -> int:
    options = _parser().parse_args()
    if reason := missing():
        print(f"no campaign here: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was done to the hosts is taken back
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-chaos-"))
    if options.healthy:
        alarms = healthy.campaign(folder, options.healthy, labs=options.labs)
        print(f"{options.healthy} healthy runs, {len(alarms)} false alarms", *alarms, sep="\n  ")
        return _end(folder, bool(alarms))
    rounds = _rounds(options)
    results = []
    with Campaign(folder) as campaign:
        for round in rounds:
            results.append(campaign.play(round))
            print(report.line(results[-1]), *(f"\n       {text}" for text in results[-1].violations), flush=True)
        lost = campaign.lost_records()
    print("\n" + report.summary(_plan(options), results))
    for text in lost:
        print(f"at the end of the campaign: {text}")
    if options.json:
        options.json.write_text(json.dumps(report.to_json(_plan(options), results), indent=1) + "\n")
    bad = bool(lost) or any(result.violations for result in results)
    return _end(folder, bad)


def _end(folder: Path, bad: bool) -> int:
    """Outputs and records are kept where they explain something."""
    print(f"evidence: {folder}" if bad else "no violation")
    if not bad:
        shutil.rmtree(folder)
    return int(bad)


def _plan(options: argparse.Namespace) -> str:
    return " ".join([f"--seed {options.seed}", *(["--fault", *options.fault] if options.fault else [])])


def _rounds(options: argparse.Namespace) -> Sequence[Round]:
    choices = catalogue.choices(set(options.fault))
    if options.only is not None:
        return [one_round(options.seed, options.only, choices)]
    return plan(options.seed, options.number, choices)[options.begin :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the same seed gives the same plan")
    add("--number", type=int, default=40, help="how many faults")
    add("--begin", type=int, default=0, help="leave out the rounds before this one")
    add("--only", type=int, help="this round of the plan alone")
    add("--fault", choices=sorted(catalogue.FAULTS), default=[], nargs="+", help="a plan of these kinds alone")
    add("--json", type=Path, help="write all results there")
    add("--healthy", type=int, default=0, metavar="N", help="instead: N healthy runs on an overloaded machine")
    add("--labs", type=int, default=3, help="how many healthy runs at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
