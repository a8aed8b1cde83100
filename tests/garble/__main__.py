"""``python -m tests.garble --seed S --number N``: see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.garble.campaign import Campaign
from tests.garble.recording import record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.garble", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddpctl-garble-") as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        campaign = Campaign(record(Path(folder) / "hosts"), Path(folder) / "played")
        begun, count, bad = time.monotonic(), Counter[str](), 0
        for scene, seed, found in campaign.run(options.seed, options.number):
            count[scene] += 1
            bad += bool(found)
            for text in found:
                print(f"{scene} seed {seed}: {text[:500]}", flush=True)
    took, sum_up = time.monotonic() - begun, f"{bad} with a violation, {campaign.refused} in which b was found out"
    print(f"{options.number} conversations garbled in {took:.0f} s: {sum_up}; {dict(count)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
