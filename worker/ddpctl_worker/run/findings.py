"""What has failed on this node, from what its supervisor knows of the launcher and the ranks (cause.py judges it)."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine import cgroup
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.lines import STDERR
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.run import cause as causes
from ddpctl_worker.run.cause import Failure
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.limits import CATCH_UP_S, CULPRIT_S, LAUNCHER_REPORT_S
from ddpctl_worker.run.recorder import Look, Recorder
from ddpctl_worker.run.rendezvous import given_up
from ddpctl_worker.wire.contract import PLAIN


class Findings:
    """``candidates`` is what may have failed, ``kept`` the same from before this node's own signals blurred it."""

    def __init__(self, run: Dict[str, Any], drain: Drain, roster: Roster, recorder: Recorder) -> None:
        self._run, self._drain, self._roster, self._recorder = run, drain, roster, recorder
        self._host: str = run["host"]
        self._oom = cgroup.OomHistory()
        self._look: Optional[Look] = None
        self.kept: List[Failure] = []

    def watch(self) -> None:
        """To be called about once a second, or more often."""
        self._oom.look()

    def failure(self, status: Optional[int]) -> Optional[Outcome]:
        """What has failed, once the launcher has ended (``status``), or a rank has died and its launcher takes its time
        to say so: torch before 2.1 may take minutes."""
        since = self._roster.first_failure()
        slow = since is not None and time.monotonic() - since > LAUNCHER_REPORT_S
        if not status and not slow:
            return None
        self._look = self._look or self._recorder.look()
        return self.likeliest(status) if self._look.over else None

    def likeliest(self, status: Optional[int]) -> Optional[Outcome]:
        """The likeliest candidate, after all that was said has been read.

        A rank that ended too early counts only once nothing here can fail any more."""
        self._drain.catch_up(CATCH_UP_S)
        found = [one for one in self.candidates(status) if status is not None or not one.early]
        return self.outcome(found[0]) if found else None

    def closer(self, known: Optional[Outcome]) -> Optional[Outcome]:
        """A rank here that has failed and is slow to die, or hangs in its exit, while only victims are known; ``known``
        is the one of this node. To be called once a second."""
        self._recorder.look()  # answered by the next call
        first = next(iter(self.candidates(None)), None)
        if first is None or first.victim:
            return None
        if first.early and known is not None and (known.early or time.time() - known.when < CULPRIT_S):
            return None
        if first.early or first.code is None:
            return self.outcome(first)
        return self.likeliest(None) if known is not None else None  # otherwise a death is reported as ever

    def keep(self, status: Optional[int]) -> None:
        self.kept = [one for one in self.candidates(status) if not one.early]

    def causes(self) -> List[Dict[str, Any]]:
        """Those of ``kept``, as the record has them."""
        return [self.outcome(one).cause or {} for one in self.kept]

    def code(self) -> Optional[int]:
        """The exit code of the rank that failed here; negative for a signal."""
        return next((one.code for one in self.kept if one.rank is not None and one.code is not None), None)

    def candidates(self, status: Optional[int]) -> List[Failure]:
        """What may have failed here, the likeliest first."""
        return causes.candidates(
            causes.Evidence(
                status,
                self._drain.tails(),
                self._roster.numbers(),
                self._recorder.error,
                time.time(),
                self._oom.rises(),
                {local: (death.status, death.at) for local, death in self._roster.deaths.items()},
                self._roster.of_now(self._drain.tracebacks()),
                self._drain.said(),
                self._run.get("launcher") == PLAIN,
            )
        )

    def _first_failure(self) -> float:
        """When the first rank failed, here or, for all that is known here, elsewhere (wall clock)."""
        return min([one.at for one in self._roster.deaths.values() if one.status], default=time.time())

    def _launchers_words(self, told: Failure) -> str:
        """What the launcher itself said: one that gives up ends its ranks first, and those would be taken for it."""
        if told.rank is None:
            return told.message
        return self._drain.tails().get((None, STDERR), "") if told.victim else ""

    def outcome(self, told: Failure) -> Outcome:
        when = told.when or time.time()
        if told.early:
            why = outcomes.ended_early(self._host, told.rank, iso(when), self._first_failure() - when)
            return outcomes.failed(why, when=when, suspect=True)
        gave_up = given_up(self._run, self._launchers_words(told))
        why = outcomes.cause(
            gave_up.host if gave_up else self._host,
            gave_up.reason if gave_up else told.reason,
            gave_up.message if gave_up else told.message,
            rank=None if gave_up else told.rank,
            exit_code=told.exit_code,
            signal=None if gave_up else told.signal,
            traceback=told.traceback,
            when=when,
        )
        return outcomes.failed(why, victim=told.victim, when=when, suspect=told.suspect)
