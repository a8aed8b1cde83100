"""``python -m tests.restarts``: see the package."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.programs import ENOUGH
from tests.hangs.campaign import TROUBLE, site_in
from tests.lab import Lab, interpreters, missing
from tests.restarts.judge import findings
from tests.restarts.plan import HOSTS, KINDS, Round, plan
from tests.restarts.play import LAST, keep, play
from tests.restarts.report import Result, line, table
from tests.restarts.train import FAULT, uninterrupted


class Campaign:
    """A single lab for all rounds; a new lab after trouble with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._right: Mapping[int, float] = uninterrupted(folder / "uninterrupted", interpreters.python213(), LAST)

    def __enter__(self) -> Campaign:
        self._lab = Lab(len(HOSTS))
        return self

    def __exit__(self, *error: object) -> None:
        self._lab.stop()

    def play(self, round: Round) -> Result:
        began = time.monotonic()
        try:
            with site_in(self._lab, self._folder / f"round{round.number}") as site:
                facts = play(site, round)
                wrong = findings(facts, self._right)
                if wrong:
                    keep(site, facts, self._folder / f"round{round.number}" / "evidence")
            self._heal()
        except TROUBLE as error:
            self._lab.stop()
            self._lab = Lab(len(HOSTS))
            return Result(round, [f"campaign: {error!r}"], None, "-", time.monotonic() - began)
        outcome = "ended" if facts.ended else f"attempt {max(facts.attempts, default=0)}"
        took = time.monotonic() - began
        return Result(round, wrong, facts.seconds, outcome, took, facts.born, os.getloadavg()[0])

    def _heal(self) -> None:
        self._lab.heal()
        for host in self._lab:
            host.run(["rm", "-f", FAULT, ENOUGH])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.restarts", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the same seed gives the same plan")
    add("--number", type=int, default=28, help="how many rounds")
    add("--begin", type=int, default=0, help="leave out the rounds before this one")
    add("--only", default=",".join(KINDS), help="a plan of these kinds alone, as a,b")
    options = parser.parse_args()
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if reason := missing():
        print(f"no campaign here: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the lab is taken down before that
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-restarts-"))
    results = []
    with Campaign(folder) as campaign:
        for round in plan(options.seed, options.number, kinds)[options.begin :]:
            results.append(campaign.play(round))
            print(line(results[-1]), flush=True)
    bad = [one for one in results if one.wrong]
    print("", *table(results), f"{len(results)} rounds, {len(bad)} wrong", sep="\n")
    for one in results if bad else ():
        folder_of = folder / f"round{one.round.number}"
        if one.wrong:
            print(f"evidence: {folder_of}")
        else:
            shutil.rmtree(folder_of, ignore_errors=True)
    if not bad:
        shutil.rmtree(folder)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
