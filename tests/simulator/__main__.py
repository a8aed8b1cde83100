"""python -m tests.simulator --seed N [-v]: the events under a seed, or the seeds that break a promise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "worker"))

from tests.simulator.agents import PROFILES, AgentWorld
from tests.simulator.gangs import GangWorld

PROFILE = {profile.name: profile for profile in PROFILES}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--profile", choices=["gang", *PROFILE], help="the faults; without it: all of them")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("-v", action="store_true", help="print the trace of every seed, and not only of a violation")
    given = parser.parse_args()
    broken = 0
    for name in [given.profile] if given.profile else ["gang", *PROFILE]:
        for seed in range(given.seed, given.seed + given.seeds):
            world: AgentWorld | GangWorld = GangWorld(seed) if name == "gang" else AgentWorld(seed, PROFILE[name])
            found = world.play()
            broken += bool(found)
            if found or given.v:
                print(f"--- {name}, seed {seed}", *world.trace, sep="\n")
    print(f"{broken} seeds break a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
