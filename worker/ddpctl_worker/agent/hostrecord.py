"""The run's record on this host, which the agent keeps: to a reader it is the run's supervisor."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, Optional

from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.record import record
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.wire.contract import STARTING


class HostRecord:
    """What it consists of is in ``paths``."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        me = processes.identify(os.getpid())
        self._names: Dict[str, Any] = {"supervisor": me.to_json() if me else None, "cookie": os.urandom(16).hex()}
        self._names.update(guardian=None, launcher=None, group=None)
        self._told: Dict[str, Any] = {"boot": proc.boot_id(), "machine": proc.machine(), "started": notes.now_iso()}
        self._state = ""

    def claim(self, port: int) -> bool:
        """Say who keeps this run; False: somebody has ended it already."""
        self._told["port"] = port
        if not fs.write_once(self.paths.claim, self._names, durable=False):
            return False
        self.save(STARTING)
        return True

    def save(self, state: str) -> None:
        if state != self._state:
            fs.write_json(self.paths.state, {"state": state, **self._names, **self._told})
            self._state = state

    def say(self, note: Optional[str]) -> None:
        """What the status says of this host; None: nothing."""
        if note != self._told.get("note"):
            self._told["note"] = note
            notes.note("agent: %s" % (note or "it waits no longer"))
            with contextlib.suppress(OSError):  # a full disk
                fs.write_json(self.paths.state, {"state": self._state, **self._names, **self._told})

    def keep(self, agreed: Dict[str, Any]) -> None:
        """Vote and proposal, on disk also where that is full. Raises OSError."""
        record.replace(self.paths.agreed, agreed, self.paths.agreed_reserve)

    def stop_word(self) -> Optional[Dict[str, Any]]:
        """What somebody wrote who wants the run to end, or who has ended it while this agent hung."""
        if os.path.lexists(self.paths.stop):
            return fs.read_json(self.paths.stop)
        return {} if os.path.lexists(self.paths.exit) else None

    def end(self, outcome: Outcome, part: Optional[LocalPart]) -> None:
        """Write down how it ended; the numbers are those of the last part that ran here."""
        end = dict(part.end) if part is not None and part.end is not None else record.exit_record(outcome)
        number = part.number if part is not None else record.attempt_of(fs.read_optional(self.paths.run))
        end.update(state=outcome.state, cause=outcome.cause, attempt=number)
        writer = record.ExitWriter(self.paths)
        while not writer.wrote(lambda: end):
            time.sleep(max(0.0, writer.again_at - time.monotonic()))
