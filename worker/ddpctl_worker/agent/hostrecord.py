"""The run's record on this host, which the agent keeps: to a reader it is the run's supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ddpctl_worker import fs, notes, proc
from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.contract import STARTING
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import processes, record
from ddpctl_worker.run.desk import Desk
from ddpctl_worker.run.status import holders, watchers


class HostRecord:
    """What it consists of is in ``paths``."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.cookie = os.urandom(16).hex()
        me = processes.identify(os.getpid())
        self._names: Dict[str, Any] = {"supervisor": me.to_json() if me else None, "cookie": self.cookie}
        self._names.update(guardian=None, launcher=None, group=None)
        self._told: Dict[str, Any] = {"boot": proc.boot_id(), "machine": proc.machine(), "started": notes.now_iso()}
        self._state = ""
        self._lock: Optional[int] = None

    @property
    def moved(self) -> Optional[Tuple[int, int]]:
        """How often the agent was started again, and its port; None: never."""
        return (self._told["moved"], self._told["port"]) if "moved" in self._told else None

    def take_over(self, port: int, moved: Mapping[str, Any]) -> Optional[str]:
        """Keep the run here from now on, after an agent that is gone; or why not. The claim stays that of the first.

        The lock lasts as long as this process: of two that come at once, one stays. A stop that comes meanwhile finds
        this agent in the record, or this agent finds its word.
        """
        self._lock = os.open(self.paths.agent_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "another agent of the run is there already"
        before = holders(self.paths)
        if watchers(before):
            return "the agent of the run is there already"
        count = max(int(before.get("moved") or 0), int((moved.get(self.paths.host) or [0])[0])) + 1
        self._names["cookie"] = before.get("cookie") or self.cookie
        self._told.update(port=port, moved=count, started=before.get("started") or self._told["started"])
        self.save(STARTING)
        return "the run was ended here" if self.stop_word() is not None else None

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
        """Vote and paper, on disk also where that is full. Raises OSError."""
        record.replace(self.paths.agreed, agreed, self.paths.agreed_reserve)

    def open_desk(self, admit: Callable[[], Dict[str, Any]]) -> None:
        """For the verb `admit`; in the place of an agent that is gone."""
        fs.discard(self.paths.agent_socket)
        Desk(self.paths.agent_socket, admit).open()

    def stop_word(self) -> Optional[Dict[str, Any]]:
        """What somebody wrote who wants the run to end, or has ended it while no agent was here."""
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
