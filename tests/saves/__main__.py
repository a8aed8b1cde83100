"""``python -m tests.saves --seed S --number N``: see the package."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.saves.campaign import PLAIN, RESNET, campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.saves", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the same seed gives the same moments")
    add("--number", type=int, default=50, help="how many stops")
    add("--plain", action="store_true", help="a program without torch instead of resnet_ddp")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run is ended before that
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-saves-"))
    wrong = 0
    for number, found in enumerate(campaign(folder, PLAIN if options.plain else RESNET, options.seed, options.number)):
        wrong += bool(found.wrong)
        print(f"{number:4} {found}", flush=True)
    print(f"--seed {options.seed} --number {options.number}: {wrong} of {options.number} wrong")
    if wrong:
        print(f"evidence: {folder}")
    else:
        shutil.rmtree(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
