"""What a fault is: its injection, its meaning for the run, and the host that the cause must name."""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.plan import END, PLAIN, RESTARTS, STARTING, TORCH, TRAINING, Round
from tests.chaos.sight import Watch
from tests.e2e.site import Site
from tests.lab import Host
from tests.lab.command import Running

TARGET_S = 20.0  # how long the process that is to be hurt may take to appear


class Fate(enum.Enum):
    """The required outcome of the run."""

    ENDS = "must end"
    GOES_ON = "must go on"
    EITHER = "may end or go on"


@dataclass
class Scene:
    """A round while it is played."""

    site: Site
    round: Round
    job: str
    victim: Host
    watch: Watch
    up: Running
    undo: contextlib.ExitStack  # what a fault has done to the hosts, to be taken back by `heal`
    others: list[tuple[str, Running, frozenset[int]]] = field(default_factory=list)  # commands a fault has started

    @property
    def run(self) -> str:
        return self.watch.run

    @property
    def hosts(self) -> Sequence[Host]:
        return self.site.lab.hosts

    @property
    def peers(self) -> list[Host]:
        return [host for host in self.hosts if host is not self.victim]

    def within(self, found: Callable[[], object], seconds: float = TARGET_S) -> bool:
        """Poll until it is there; False where it does not come, as at the end of a run it may not."""
        deadline = time.monotonic() + seconds
        while not found():
            if time.monotonic() > deadline or self.up.process.poll() is not None:
                return bool(found())
            time.sleep(0.02)
        return True


@dataclass(frozen=True)
class Fault:
    """``inject`` puts what takes it back on ``scene.undo``, and says whether it found its target."""

    name: str
    inject: Callable[[Scene], bool]
    fate: Fate = Fate.ENDS  # of a run in mid-training
    moments: tuple[str, ...] = (STARTING, TRAINING, END)
    thens: tuple[str, ...] = ()  # the permitted action on a run that goes on; () is all there is
    hold: float = 5.0  # seconds that the fault lasts where the run goes on
    blames: bool = True  # the cause must name the victim ...
    ends: tuple[str, ...] = ()  # ... or either host of the cut link
    deaf: bool = False  # the victim cannot stop, or be seen, before it is healed
    leaves: bool = False  # no process is left on the victim to end the run there: a `ddpctl kill` does
    disk: bool = False  # the victim's base_dir is a small ext4 of its own
    jobs: tuple[str, ...] = (PLAIN, TORCH, RESTARTS)  # RESTARTS in mid-training only
    kill_codes: frozenset[int] = frozenset({0})  # of a kill while the fault lasts
    states: frozenset[str] = frozenset({"failed", "lost"})  # of a run that must end

    def fate_at(self, moment: str) -> Fate:
        """A run that is about to end, or has not begun, may outrun a fault that would end it."""
        return Fate.EITHER if self.fate is Fate.ENDS and moment != TRAINING else self.fate
