"""Collects the supervisor's evidence of failures on this node; cause.py judges it."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine import cgroup
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.lines import STDERR
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run import cause as causes
from ddpctl_worker.run.cause import Evidence, Failure
from ddpctl_worker.run.drain import Drain
from ddpctl_worker.run.limits import CATCH_UP_S, CULPRIT_S, LAUNCHER_REPORT_S, MOST_CATCH_UP_S
from ddpctl_worker.run.no_space import read_limits
from ddpctl_worker.run.recorder import Look, Recorder
from ddpctl_worker.run.rendezvous import find_rejected_host
from ddpctl_worker.wire.contract import PLAIN


class Findings:
    """``kept``: the possible failures from before the stop: deaths by its signals look like failures too."""

    def __init__(self, run: RunRecord, drain: Drain, roster: Roster, recorder: Recorder) -> None:
        self._run, self._drain, self._roster, self._recorder = run, drain, roster, recorder
        self._host: str = run["host"]
        self._limits = cgroup.LimitHistory()
        self._look: Optional[Look] = None
        self._behind_since: Optional[float] = None  # since when the pipes could not be read to their end (monotonic)
        self.kept: List[Failure] = []

    def watch(self) -> None:
        """Look for OOM kills; called about once a second."""
        self._limits.look()

    def failure(self, status: Optional[int]) -> Optional[Outcome]:
        """Return this node's failure once the launcher has ended (``status``: its wait status), or is slow to end.

        A launcher is slow if LAUNCHER_REPORT_S have passed since a rank died. It first gives the other ranks 30 s,
        and torch before 2.1 may take minutes.
        """
        since = self._roster.first_failure() or self._unseen_failure()
        slow = since is not None and time.monotonic() - since > LAUNCHER_REPORT_S
        if not status and not slow:
            return None
        self._look = self._look or self._recorder.look()
        return self.likeliest_failure(status) if self._look.over else None

    def likeliest_failure(self, status: Optional[int]) -> Optional[Outcome]:
        """Return the likeliest candidate once the pipes have been read; ``None``: none, or look again.

        A rank that ended too early counts only once the launcher has ended: until then another rank may fail.
        """
        if not self._has_caught_up():
            return None
        found = [failure for failure in self.candidates(status) if status is not None or not failure.early]
        return self.outcome(found[0]) if found else None

    def _has_caught_up(self) -> bool:
        """Return whether the output until now is known. After MOST_CATCH_UP_S it counts as it is: a disk may hang.

        Without the launcher's last words its exit code would be the cause, and no rank would be named.
        """
        now = time.monotonic()
        if self._drain.catch_up(CATCH_UP_S):
            self._behind_since = None
            return True
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since > MOST_CATCH_UP_S

    def find_slow_rank(self, known: Optional[Outcome]) -> Optional[Outcome]:
        """Return the failure of a rank here that is slow to die, or hangs in its exit, else ``None``.

        Called once a second while all known failures are victims. ``known``: this node's view so far.
        """
        self._recorder.look()  # answered by the next call
        first = next(iter(self.candidates(None)), None)
        if first is None or first.victim:
            return None
        if first.early and known is not None and (known.early or time.time() - known.when < CULPRIT_S):
            return None
        if first.early or first.code is None:
            return self.outcome(first)
        return self.likeliest_failure(None) if known is not None else None  # otherwise ``failure`` reports the death

    def keep(self, status: Optional[int]) -> None:
        self.kept = [failure for failure in self.candidates(status) if not failure.early]

    def causes(self) -> List[Dict[str, Any]]:
        """Return the causes of ``kept``, as in the record."""
        return [self.outcome(failure).cause or {} for failure in self.kept]

    def code(self) -> Optional[int]:
        """Return the exit code of the rank that failed here, negative for a signal."""
        return next(
            (failure.code for failure in self.kept if failure.rank is not None and failure.code is not None), None
        )

    def candidates(self, status: Optional[int]) -> List[Failure]:
        """Return the possible failures here, the likeliest first."""
        return causes.candidates(self._evidence(status))

    def _evidence(self, status: Optional[int]) -> Evidence:
        return Evidence(
            status,
            self._drain.tails(),
            self._roster.numbers(),
            self._recorder.error,
            time.time(),
            self._limits.rises(),
            {local: (death.status, death.at) for local, death in self._roster.deaths.items()},
            self._roster.current_ranks(self._drain.tracebacks()),
            self._drain.said(),
            {rank.local_rank: rank.pid for rank, _ in self._roster.dead()},
            self._run.get("launcher") == PLAIN,
            self._limits.find_memory_limit(),
            self._limits.find_task_limit(),
            read_limits(),
        )

    def _unseen_failure(self) -> Optional[float]:
        """Return when a rank failed with a status that only its launcher knows (monotonic); ``None``: no rank did.

        Only with the static rendezvous: any other launcher may start the rank again.
        """
        deaths = self._roster.deaths
        if self._run["rendezvous"] != "static" or all(death.status is not None for death in deaths.values()):
            return None
        local = causes.find_unseen_failure(self._evidence(None))
        return None if local is None else deaths[local].seen

    def _first_failure(self) -> float:
        """Return when the first rank failed (Unix seconds): here, or now if the failure was on another node."""
        return min([death.at for death in self._roster.deaths.values() if death.status], default=time.time())

    def _launchers_words(self, failure: Failure) -> str:
        """Return the launcher's own words.

        A launcher that gives up ends its ranks first, and these look like victims then.
        """
        if failure.rank is None:
            return failure.message
        return self._drain.tails().get((None, STDERR), "") if failure.victim else ""

    def outcome(self, failure: Failure) -> Outcome:
        """Return the outcome for ``failure``, with torch's elastic agent as the cause where the agent gave up."""
        when = failure.when or time.time()
        if failure.early:
            why = outcomes.ended_early(self._host, failure.rank, iso(when), self._first_failure() - when)
            return outcomes.failed(why, when=when, suspect=True)
        gave_up = find_rejected_host(self._run, self._launchers_words(failure))
        why = outcomes.cause(
            gave_up.host if gave_up else self._host,
            gave_up.reason if gave_up else failure.reason,
            gave_up.message if gave_up else failure.message,
            rank=None if gave_up else failure.rank,
            exit_code=failure.exit_code,
            signal=None if gave_up else failure.signal,
            traceback=failure.traceback,
            when=when,
        )
        found = outcomes.failed(why, victim=failure.victim, when=when, suspect=failure.suspect)
        return found._replace(in_time=failure.in_time)
