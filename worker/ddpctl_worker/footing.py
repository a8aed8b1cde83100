"""What a run stands on: its folder, where it can be seen and stopped, and no exit record but its supervisor's own."""

from __future__ import annotations

import os
import time
from typing import Optional

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import record
from ddpctl_worker.contract import SUPERVISOR_LOST
from ddpctl_worker.outcome import GONE_S, Outcome
from ddpctl_worker.paths import RunPaths

LOOK_S = 1.0


class FolderWatch:
    """Looked at now and then by the record writer, for the supervisor."""

    def __init__(self, paths: RunPaths, host: str, gone: float = GONE_S) -> None:
        self._paths, self._host, self._gone = paths, host, gone
        self._look_at = 0.0
        self._gone_since: Optional[float] = None

    def lost(self) -> Optional[Outcome]:
        """Why the run must end although nothing of it has failed; None nearly always."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        return self._told_over() or self._removed(now)

    def _told_over(self) -> Optional[Outcome]:
        """Somebody wrote the exit record: the world believes that nothing of this run is left, so nothing may be."""
        end = record.read_optional(self._paths.exit)
        return Outcome(str(end["state"]), end.get("cause"), when=time.time()) if "state" in end else None

    def _removed(self, now: float) -> Optional[Outcome]:
        """Without its folder nobody can see or stop a run. Any other trouble with the disk may pass."""
        try:
            os.stat(self._paths.run)
        except (FileNotFoundError, NotADirectoryError):
            self._gone_since = self._gone_since or now
            if now - self._gone_since < self._gone:
                return None
            text = "the run's folder %s was removed: nobody could see or stop the job any more" % self._paths.node
            return outcomes.failed(outcomes.cause(self._host, SUPERVISOR_LOST, text))
        except OSError:
            pass
        self._gone_since = None
        return None
