"""The doctor's part in a supervisor: it watches the ranks, answers questions, and looks once more before a stop."""

from __future__ import annotations

import contextlib
import os
import time
from threading import Thread
from typing import Any, Callable, Dict, Iterable, List, Optional

from ddpctl_worker.doctor import dumps
from ddpctl_worker.doctor.hosts import Gpus, HostFacts
from ddpctl_worker.doctor.hung import Hung, timed_out
from ddpctl_worker.doctor.look import Looks, Subject, Tools
from ddpctl_worker.doctor.service import shorten_looks
from ddpctl_worker.doctor.watch import RunWatch, shorten_look
from ddpctl_worker.gang.base import Gang
from ddpctl_worker.machine import notes
from ddpctl_worker.machine.answer_socket import AnswerSocket
from ddpctl_worker.machine.clocks import Offset
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.limits import DUMPS_S, LAST_RANK_LOOK_S
from ddpctl_worker.run.order import RunOrder
from ddpctl_worker.run.recorder import Recorder
from ddpctl_worker.wire.contract import SCHEMA


class _Once:
    """Work in a thread of its own. The first call of ``over`` starts it; after ``most`` seconds it counts as over."""

    def __init__(self, name: str, work: Callable[[], None], most: float, changed: Callable[[], None]) -> None:
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._name, self._work, self._most, self._changed = name, work, most, changed
        self._until: Optional[float] = None
        self._done = False

    def over(self) -> bool:
        if self._until is None:
            self._until = time.monotonic() + self._most
            try:
                self._thread.start()
            except RuntimeError as error:  # the user's limit of threads
                notes.note("doctor: no %s: %s" % (self._name, error))
                self._done = True
        return self._done or time.monotonic() >= self._until

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            notes.note("doctor: the %s failed: %r" % (self._name, error))
        finally:
            self._done = True
            self._changed()


class Observer:
    """The doctor's part in the supervisor of ``order``. ``gpus``: returns the last readings of this node's GPUs."""

    def __init__(
        self,
        order: RunOrder,
        paths: RunPaths,
        roster: Roster,
        drain: Drain,
        recorder: Recorder,
        gang: Optional[Gang],
        changed: Callable[[], None],
        gpus: Callable[[], Gpus] = tuple,
    ) -> None:
        run, settings = order["run"], order["run"]["doctor"]
        assert settings is not None  # a run without a doctor has no observer
        self._paths, self._roster, self._drain, self._recorder = paths, roster, drain, recorder
        self._began = time.time()
        self._stems = order.get("dump_stems") or ()
        self._last = _Once("last look", self._look_last, LAST_RANK_LOOK_S, changed)
        self._dumps = _Once("copy of torch's dumps", self._keep_dumps, DUMPS_S, changed)
        alone = int(run["nnodes"]) == 1
        hosts = [run["host"]] if alone else list(run["hosts"]) if gang is not None else None
        self._watch = RunWatch(
            run["host"],
            hosts,
            float(settings["stall"]),
            Tools(paths.doctor, order.get("py_spy")),
            self._subjects,
            self._gone,
            self._ages,
            drain.count_timeouts,
            gang.broadcast if gang is not None else lambda message: None,
            self._save,
            gang.offset if gang is not None else lambda host: Offset(0.0, 0.0),
            HostFacts(gpus),
        )
        if gang is not None:
            gang.on_message(self._watch.take_message)
        self._desk = AnswerSocket(paths.doctor_socket, self._answer)
        self._looks: Optional[Looks] = None  # the last look at each rank
        self._last_kept = False

    @property
    def diagnosis(self) -> Optional[Dict[str, Any]]:
        """The doctor's diagnosis while the run is stuck, else ``None``."""
        return self._watch.diagnosis

    def hung(self, causes: Iterable[Dict[str, Any]]) -> Optional[Hung]:
        """Return the rank that the other ranks waited for until they timed out, once it is found.

        ``causes``: the failures so far. The search begins with the first time-out: printed, or among the failures.
        """
        causes = list(causes)
        if not timed_out(str(cause.get("message")) for cause in causes):
            return None
        return self._watch.search(
            {int(cause["rank"]): str(cause["host"]) for cause in causes if cause.get("rank") is not None}
        )

    def start(self) -> None:
        self._watch.start()
        with contextlib.suppress(OSError):  # it exists already; the socket reports any other trouble
            os.mkdir(self._paths.doctor, 0o700)
        self._desk.open()

    def _answer(self) -> Dict[str, Any]:
        return {"looks": shorten_looks(self._watch.look(asked=True)), "slow": self._watch.slow}

    def last_look(self, *, undecided: bool) -> bool:
        """Return whether the ranks may be stopped: the last look is complete, or ``LAST_RANK_LOOK_S`` are over.

        The first call begins the look; the supervisor calls again until the answer is True. ``undecided``: the cause of
        the failure is still open.
        """
        if self._looks is None:
            self._watch.stop(undecided=undecided)
            self._looks = self._watch.last_looks()
        if self._last.over() and not self._last_kept:
            self._last_kept = True
            self._keep_last(self._looks)  # before the stop: ranks and record may end right after
        return self._last_kept

    def _look_last(self) -> None:
        if self._looks is not None:
            self._looks.run(LAST_RANK_LOOK_S)

    def _keep_last(self, looks: Looks) -> None:
        try:
            found = [shorten_look(one) for one in self._watch.complete_looks(looks.results())]
            value = {"schema": SCHEMA, "time": notes.now_iso(), "looks": found, "slow": self._watch.slow}
            self._recorder.put(self._paths.last_look, value, durable=False)
        except Exception as error:
            notes.note("doctor: the last look failed: %r" % error)

    def dumps_kept(self) -> bool:
        """Return whether torch's dumps were copied, or DUMPS_S are over. Called once no process of the job is left."""
        return self._dumps.over()

    def _keep_dumps(self) -> None:
        left_out = dumps.copy_dumps(self._stems, self._roster.numbers().values(), self._began, self._paths.dumps)
        for line in left_out + dumps.is_too_large(self._paths.dumps):
            notes.note("doctor: torch's dump is not fetched: %s" % line)

    def _subjects(self) -> List[Subject]:
        return [Subject(one.rank, one.local_rank, one.pid) for one in self._roster.alive()]

    def _gone(self) -> List[Dict[str, Any]]:
        """Return the ranks that have ended, in the shape of a look."""
        now = time.monotonic()
        return [
            dict(
                Subject(one.rank, one.local_rank, one.pid)._asdict(), state="ended", ended_s=round(now - death.seen, 1)
            )
            for one, death in self._roster.dead()
        ]

    def _ages(self) -> Dict[int, float]:
        """Return local rank -> seconds since its last output."""
        found: Dict[int, float] = {}
        for (local, _), at in self._drain.said().items():
            if at:
                found[local] = min(found.get(local, 1e9), round(max(0.0, time.time() - at), 1))
        return found

    def _save(self, made: Dict[str, Any]) -> None:
        self._recorder.put(self._paths.diagnosis, dict(made, schema=SCHEMA), durable=False)
