"""The files of a run on this host, written by its agent. A reader finds the agent in the supervisor's place."""

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
    """Writes the claim, the state, the ballot and the end of the run; ``paths`` names the files."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        me = processes.identify(os.getpid())
        self._names: Dict[str, Any] = {"supervisor": me.to_json() if me else None, "cookie": os.urandom(16).hex()}
        self._names.update(guardian=None, launcher=None, group=None)
        self._facts: Dict[str, Any] = {"boot": proc.boot_id(), "machine": proc.machine(), "started": notes.now_iso()}
        self._state = ""

    def claim(self, port: int) -> bool:
        """Claim the run for this agent; False if the run has been ended already."""
        self._facts["port"] = port
        if not fs.write_once(self.paths.claim, self._names, durable=False):
            return False
        self.save(STARTING)
        return True

    def save(self, state: str) -> None:
        if state != self._state:
            fs.write_json(self.paths.state, {"state": state, **self._names, **self._facts})
            self._state = state

    def say(self, note: Optional[str]) -> None:
        """Set the note in this host's status; ``None`` removes it."""
        if note != self._facts.get("note"):
            self._facts["note"] = note
            notes.note("agent: %s" % (note or "it waits no longer"))
            with contextlib.suppress(OSError):  # a full disk
                fs.write_json(self.paths.state, {"state": self._state, **self._names, **self._facts})

    def keep(self, agreed: Dict[str, Any]) -> None:
        """Store the ballot (vote and proposal); a reserve makes this work on a full disk.

        Raises: OSError: the disk refuses the file.
        """
        record.replace(self.paths.agreed, agreed, self.paths.agreed_reserve)

    def read_stop_order(self) -> Optional[Dict[str, Any]]:
        """Return the order to end the run; empty if the run was ended while this agent hung; ``None`` if the run
        continues.
        """
        if os.path.lexists(self.paths.stop):
            return fs.read_json(self.paths.stop)
        return {} if os.path.lexists(self.paths.exit) else None

    def end(self, outcome: Outcome, part: Optional[LocalPart]) -> None:
        """Write how the run ended. The counts are those of the last part that ran here."""
        end = dict(part.end) if part is not None and part.end is not None else record.exit_record(outcome)
        number = part.number if part is not None else record.attempt_of(fs.read_optional(self.paths.run))
        end.update(state=outcome.state, cause=outcome.cause, attempt=number)
        writer = record.ExitWriter(self.paths)
        while not writer.wrote(lambda: end):
            time.sleep(max(0.0, writer.again_at - time.monotonic()))
