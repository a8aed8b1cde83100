"""``python -m tests.hangs --seed S --number N``: see the package."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.hangs import hangs, healthy, pauses, stragglers
from tests.hangs.kinds import KINDS
from tests.hangs.look import py_spy
from tests.lab import missing


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if reason := missing():
        print(f"no campaign here: {reason}", file=sys.stderr)
        return 2
    known = pauses.PROGRAMS if options.healthy else {} if options.slow or options.balanced else KINDS
    if unknown := set(options.only) - known.keys():
        parser.error(f"--only: no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known)) or 'none'}")
    if options.programs and not options.healthy and not py_spy():
        print("--programs needs py-spy on the PATH", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was done to the hosts is taken back
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-hangs-"))
    bad = _subject(options).campaign(folder, options)
    if bad or options.keep:
        print(f"evidence: {folder}")
    else:
        shutil.rmtree(folder)
    return int(bad)


def _subject(options: argparse.Namespace) -> ModuleType:
    if options.slow or options.balanced:
        return stragglers
    return healthy if options.healthy else hangs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.hangs", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the same seed gives the same plan")
    add("--number", type=int, default=60, help="how many jobs")
    add("--begin", type=int, default=0, help="leave out the jobs of the plan before this one")
    add("--only", default=[], nargs="+", metavar="KIND", help="a plan of these kinds (or healthy programs) alone")
    add("--keep", action="store_true", help="keep outputs and documents of all jobs, not only if one was wrong")
    add("--programs", action="store_true", help="without the doctor: check with py-spy that the programs hang")
    add("--healthy", action="store_true", help="instead: programs that pause and do not hang")
    add("--slow", action="store_true", help="instead: one rank is slow, and is named within 50 steps")
    add("--balanced", action="store_true", help="instead: no rank is slow, and none is named")
    add("--jobs", type=int, help="how many jobs at once (1; with --healthy 4)")
    add("--stall", type=float, default=15.0, help="the job key doctor.stall of a hang, in seconds")
    add("--pause", type=float, default=60.0, help="the length of a pause of a healthy program, in seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
