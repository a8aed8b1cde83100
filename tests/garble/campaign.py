"""Scene after scene with another seed each time, and the conditions that must hold."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from ddpctl.errors import InternalFault
from ddpctl.stages import follow, mesh
from ddpctl.transport import limits
from ddpctl.transport.base import Frame
from ddpctl_worker.wire import contract
from tests.garble.mutate import garbled
from tests.garble.replay import fleet
from tests.garble.scenes import GOOD, SCENES, Played

SLOW_S = 60.0
Said = Mapping[str, Mapping[str, list[Frame]]]


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """A node that hangs is given up after a second: the result after the deadline is of interest, not the waiting."""
    with (
        mock.patch.object(contract, "LINK_DEAD_S", 1.0),
        mock.patch.object(follow, "GIVE_UP_S", 1.0),
        mock.patch.object(limits, "RETRY_FIRST_S", 0.1),
        mock.patch.object(mesh, "MESH_READY_S", 8.0),
    ):
        yield


def play(scene: str, said: Said, folder: Path, seed: int | None) -> Played:
    """A scene; with a seed host `b` garbles its messages."""
    rng = random.Random(f"{scene} {seed}")
    change = None if seed is None else (lambda frames: garbled(frames, rng))
    played = Played(folder)
    SCENES[scene](fleet(said, "b", change), played)
    return played


def judged(scene: str, said: Said, folder: Path, seed: int, usual: Played) -> tuple[Played | None, list[str]]:
    """The result of a single seed, and the violated conditions."""
    crashed: list[str] = []
    done: list[Played] = []

    def work() -> None:
        try:
            done.append(play(scene, said, folder, seed))
        except Exception as error:  # a user would see it as a traceback, or as the failure of all hosts
            crashed.append(repr(error))

    hook, threading.excepthook = threading.excepthook, lambda args: crashed.append(repr(args.exc_value))
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SLOW_S)
    threading.excepthook = hook
    if thread.is_alive():
        return None, [f"it hangs for {SLOW_S:.0f} s"]
    return (done[0], crashed + _violations(done[0], usual)) if done else (None, crashed)


def _violations(played: Played, usual: Played) -> list[str]:
    faults = [error for error in played.errors.values() if isinstance(error, InternalFault)]
    found = [f"a fault of ours: {error}" for error in faults]
    found += [f"{host} has an error: {played.errors[host]}" for host in GOOD if host in played.errors]
    served = played.served
    found += [f"{host}: {served.get(host)}" for host in GOOD if served.get(host) != usual.served[host]]
    if "\x1b" in played.screen.getvalue() or "\x07" in played.screen.getvalue():
        found.append("an escape reached the terminal")
    return found


class Campaign:
    """Seeds from ``first`` on, scene by scene in turn."""

    def __init__(self, said: Said, folder: Path) -> None:
        self._said, self._folder = said, folder
        self.refused = 0  # cases in which `b` was found out
        with impatient():
            self._usual = {scene: play(scene, said, self._place(scene), None) for scene in SCENES}
        assert not any(played.errors for played in self._usual.values()), self._usual

    def run(self, first: int, number: int) -> Iterator[tuple[str, int, list[str]]]:
        with impatient():
            for seed in range(first, first + number):
                scene = list(SCENES)[seed % len(SCENES)]
                place = self._place(f"{scene}-{seed}")
                played, found = judged(scene, self._said, place, seed, self._usual[scene])
                self.refused += played is not None and "b" in played.errors
                yield scene, seed, found
                shutil.rmtree(place, ignore_errors=True)

    def _place(self, name: str) -> Path:
        place = self._folder / name
        place.mkdir(parents=True)
        return place
