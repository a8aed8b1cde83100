"""A run on fewer hosts than it wants takes in one that is back, at its next checkpoint.

Nothing is stopped before there is a new checkpoint: the ranks are asked for one, where all of them handle the job's
signal, and otherwise their own next one is waited for. Whether and when a run may grow is for policy.py to say.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence

from ddpctl_worker import fs, notes
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.agent.talk import Unanswered
from ddpctl_worker.checkpoint.fresh import Fresh
from ddpctl_worker.paths import checkpoint_dir, job_id
from ddpctl_worker.run import ask, processes, ranks
from ddpctl_worker.run.ranks import RankProcess
from ddpctl_worker.system import CLOCK, HostClock

LOOK_S = 1.0
Ask = Callable[[str, Dict[str, Any]], Mapping[str, Any]]  # a host, and what; raises Unanswered


class RankSaver:
    """What a host of the attempt does for it: looks whether its ranks handle the signal, asks them, sees what comes."""

    def __init__(self, base: str, run: Mapping[str, Any]) -> None:
        self._settings: Mapping[str, Any] = run.get("checkpoint") or {}
        self._folder = checkpoint_dir(base, job_id(run), run["host"])
        self._fresh: Optional[Fresh] = None
        self._looking = threading.Lock()  # a slow disk is looked at once at a time

    def answer(self, question: Mapping[str, Any], part: Optional[LocalPart]) -> Dict[str, Any]:
        """``look``: {"ready": whether all ranks here would save}; what comes later is new. ``send``: they are asked.
        ``seen``: {"saved": the name of a new checkpoint, or None, "saving": whether one still changes}."""
        if part is None or part.number != question["attempt"] or part.end is not None:
            return {"ready": False, "saved": None, "saving": False}
        if question["what"] == "seen":
            return self._seen()
        if question["what"] == "look":
            self._fresh = Fresh(self._folder)
        found = self._ranks(part)
        if not found or not self._settings:
            return {"ready": False}
        number = ask.number_of(self._settings["signal"])
        deaf = ask.send(found, number) if question["what"] == "send" else ask.deaf_of(found, number)
        return {"ready": not deaf}

    def _seen(self) -> Dict[str, Any]:
        fresh = self._fresh
        if fresh is None:
            return {"saved": None, "saving": False}
        if not self._looking.acquire(blocking=False):  # nobody waits for the look before any more
            return {"saved": None, "saving": True}
        try:
            return {"saved": fresh.look(), "saving": fresh.changing}
        finally:
            self._looking.release()

    @staticmethod
    def _ranks(part: LocalPart) -> List[RankProcess]:
        """All ranks of this host; none where some have not started."""
        launcher = processes.from_json(fs.read_optional(part.paths.state).get("launcher"))
        if launcher is None or not processes.is_alive(launcher):
            return []
        found = ranks.find(launcher.pid, {})
        return found if len(found) == int(fs.read_optional(part.paths.run).get("nproc") or 0) else []


class Growth:
    """The leader's part, in a thread of its own: ``saved`` once there is a new checkpoint, ``failed`` where the hosts
    do not reach each other, or one of them is lost. ``reachable``: whether all ``hosts`` of the next attempt do.
    ``near``: the hosts that the leader hears; one of these that does not answer is busy with its save.
    """

    def __init__(
        self,
        attempt: Mapping[str, Any],
        hosts: Sequence[str],
        ask_host: Ask,
        reachable: Callable[[List[str]], bool],
        near: Callable[[], Collection[str]],
        clock: HostClock = CLOCK,
    ) -> None:
        self._clock = clock
        self.attempt, self.hosts = int(attempt["attempt"]), list(hosts)
        self._before: List[str] = list(attempt["hosts"])
        self._ask, self._reachable, self._near = ask_host, reachable, near
        self._stopped = threading.Event()
        self.failed = False
        self.saved: Optional[str] = None

    def start(self) -> None:
        self._clock.thread(self._run, "growth").start()

    def stop(self) -> None:
        """It is not wanted any more."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._save()
        except Unanswered as error:
            notes.note("growth: not now: %s" % error)
            self.failed = True
        except Exception as error:
            notes.note("growth: %s" % notes.trace(error))
            self.failed = True

    def _save(self) -> None:
        if not self._reachable(self.hosts):
            raise Unanswered("not all of %s reach each other" % ", ".join(self.hosts))
        ready = [self._each(host, "look").get("ready") for host in self._before]
        if all(ready):
            for host in self._before:
                self._each(host, "send")
        what = "the ranks were asked for a checkpoint" if all(ready) else "not all ranks save a checkpoint when asked"
        notes.note("growth: %s; the run continues on %d hosts once there is a new one" % (what, len(self.hosts)))
        while not self._stopped.is_set() and self.saved is None:
            self._clock.sleep(LOOK_S)
            seen = [self._look_at(host) for host in self._before]
            if not any(one["saving"] for one in seen):  # each host may write files of one save
                self.saved = next((one["saved"] for one in seen if one["saved"]), None)

    def _look_at(self, host: str) -> Mapping[str, Any]:
        """What it has seen. If each missed answer made the ranks save once more, they would save without end."""
        try:
            return self._each(host, "seen")
        except Unanswered:
            if host not in self._near():
                raise
            return {"saved": None, "saving": True}

    def _each(self, host: str, what: str) -> Mapping[str, Any]:
        return self._ask(host, {"k": "save", "what": what, "attempt": self.attempt})
