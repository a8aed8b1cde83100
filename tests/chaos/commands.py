"""ddpctl itself: killed at any point, and two commands at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.chaos.fault import Fate, Fault, Scene
from tests.chaos.plan import END, FINISH, KILL, PLAIN, STARTING, TORCH, TRAINING
from tests.lab.command import Running

LIFE_S = 1.5  # a command that is to be killed lives for this long at most
ONE = (PLAIN, TORCH)  # a run of one attempt: a record after a kill, or of a second run of the job, is no attempt
ENDED = frozenset({0, 7})  # killed, or nothing there yet to kill


def up_killed(scene: Scene) -> bool:
    if scene.up.process.poll() is not None:
        return False
    scene.up.kill()
    return True


def up_twice(scene: Scene) -> bool:
    """A second run of the same name, on the same hosts."""
    codes = frozenset({0, 1, 3, 4, 5})
    scene.others.append(("up", scene.site.start("up", "--job", scene.job, "--skip-preflight"), codes))
    return True


def follower_killed(scene: Scene) -> bool:
    return _killed(scene, scene.site.start("attach", scene.job))


def tail_killed(scene: Scene) -> bool:
    return _killed(scene, scene.site.start("tail", scene.job, "-f"))


def kill_killed(scene: Scene) -> bool:
    return _killed(scene, scene.site.start("kill", scene.job))


def kill_beside_up(scene: Scene) -> bool:
    scene.others.append(("kill", scene.site.start("kill", scene.job), ENDED | {4}))
    return True


def two_kills(scene: Scene) -> bool:
    """From two places at once."""
    for site in (scene.site, scene.site.elsewhere("second")):
        scene.others.append(("kill", site.start("kill", scene.job, "--any-project"), ENDED))
    return True


def _killed(scene: Scene, command: Running) -> bool:
    time.sleep(scene.round.pick * LIFE_S)
    over = command.process.poll() is not None
    command.kill()
    return not over


def faults() -> Iterator[Fault]:
    yield Fault("up-killed", up_killed, Fate.GOES_ON, moments=(TRAINING, END), thens=(FINISH, KILL), blames=False)
    yield Fault("up-killed-early", up_killed, Fate.EITHER, moments=(STARTING,), thens=(KILL,), blames=False)
    for name, inject in (("attach-killed", follower_killed), ("tail-killed", tail_killed)):
        yield Fault(name, inject, Fate.GOES_ON, moments=(TRAINING, END), thens=(FINISH, KILL), hold=1.0, blames=False)
    yield Fault("kill-killed", kill_killed, Fate.EITHER, thens=(KILL,), hold=1.0, blames=False, jobs=ONE)
    yield Fault("kill-beside-up", kill_beside_up, Fate.EITHER, moments=(STARTING,), thens=(KILL,), blames=False)
    killed = frozenset({"killed"})
    yield Fault("two-kills", two_kills, moments=(TRAINING, END), blames=False, states=killed, jobs=ONE)
    yield Fault("up-twice", up_twice, Fate.EITHER, thens=(FINISH, KILL), hold=3.0, blames=False, jobs=ONE)
