"""Rounds whose job has restarts and a spare: a fault costs an attempt at most, or the run ends with its cause.
tests/restarts has the observation and the judgement of such rounds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tests.chaos.fault import Fate, Scene
from tests.chaos.plan import TRAINING_NODES as NODES
from tests.e2e.site import Site, until
from tests.restarts.judge import Facts
from tests.restarts.plan import EITHER
from tests.restarts.plan import Round as Plan
from tests.restarts.play import AFTER_S, BEGIN_S, LAST, PACE_S, copied, settled
from tests.restarts.sight import Sight, attempts, complete, ended
from tests.restarts.train import STEPS_FOLDER, TRAIN


def add_job(site: Site, name: str) -> None:
    keys = {"nodes": NODES, "spares": len(site.hosts) - NODES, "restarts": 3, "env": {"OMP_NUM_THREADS": "1"}}
    keys["nproc_per_node"] = 1
    site.job(name, TRAIN, STEPS_FOLDER, str(LAST), str(PACE_S), timeouts={"stop": 5}, **keys)


@contextlib.contextmanager
def watched(scene: Scene) -> Iterator[Facts]:
    """What is seen of the attempts, until the round is over."""
    hosts, round = scene.hosts, scene.round
    names = tuple(host.name for host in hosts)
    victim = frozenset({scene.victim.name})
    plan = Plan(
        round.number, round.fault, names, NODES, scene.victim.name, round.delay, False, True, EITHER, accused=victim
    )
    facts = Facts(plan)
    with Sight(hosts, scene.job) as sight:
        yield facts
        facts.twice, facts.begun, facts.attempts = sight.twice, sight.begun, attempts(hosts, scene.job)


def await_copies(scene: Scene) -> bool:
    return scene.within(lambda: copied(scene.hosts, scene.job), BEGIN_S)


def mark(scene: Scene, facts: Facts) -> None:
    """Just before the fault."""
    facts.complete = complete(scene.peers, scene.job)
    facts.fault_at = time.monotonic()


def see(scene: Scene, facts: Facts, fate: Fate, hold: float) -> None:
    """Until it trains on, or has ended; a fault that no run needs to survive lasts for ``hold`` seconds."""
    healed = facts.fault_at
    if fate is not Fate.ENDS:
        time.sleep(hold)
        scene.undo.close()
        healed = time.monotonic()
    hosts = [host for host in scene.hosts if host is not scene.victim] if fate is Fate.ENDS else list(scene.hosts)
    with contextlib.suppress(AssertionError):
        until(lambda: settled(facts, scene.job, scene.run, hosts, healed), AFTER_S, pause=0.5)
        facts.ended = ended(hosts, scene.run)
        return
    facts.trouble.append(f"no attempt trains on {AFTER_S:.0f} s after the fault, and it has not ended")
