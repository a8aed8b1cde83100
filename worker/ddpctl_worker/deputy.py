"""The supervisor's answer to a dead guardian.

A process that is no ancestor cannot become a subreaper for others, so the deputy does what it can instead: once a
second it notes every process of the run, and when the supervisor goes too it ends those, their children, and any that
carries the cookie, and writes the exit record. It is told what the guardian was told, along the same line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ddpctl_worker import processes, record
from ddpctl_worker.burial import Leftovers, clean_up, wait_until_gone
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.tether import Tether, TetherListener

RESTART_S = 5.0
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ddpctl_worker.deputy import serve_as_deputy; serve_as_deputy()"
)


class Deputy:
    """Held by the supervisor; does nothing while the guardian lives."""

    def __init__(self, order: Dict[str, Any], tether: Tether) -> None:
        self._order = {"node": order["node"], "cookie": order["cookie"]}
        self._tether = tether
        self._code_path: str = order["code_path"]
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._start_at: Optional[float] = None  # when one is to be started; None: none is missing
        self._started_at = -RESTART_S
        self._trouble = ""

    def take_over(self) -> None:
        """Start (again) a deputy: the guardian, or the last deputy, is gone."""
        self._start_at = max(time.monotonic(), self._started_at + RESTART_S)
        self.look()

    def look(self) -> None:
        """Start the deputy that is missing, once it is due: one that dies at once must not be started in a loop."""
        if self._start_at is None or time.monotonic() < self._start_at:
            return
        self._started_at = time.monotonic()
        self._start_at = self._started_at + RESTART_S
        try:
            self._process = self._start()
        except OSError as error:
            if str(error) != self._trouble:
                record.note("no deputy: %s" % error)
            self._trouble = str(error)
        else:
            self._start_at, self._trouble = None, ""

    def _start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-I", "-c", _CODE, self._code_path]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, close_fds=True)
        child.returncode = 0  # the supervisor reaps every child itself
        assert child.stdin is not None
        me = processes.identify(os.getpid())
        self._tether.attach(child.stdin.fileno())  # kept open: its end tells the deputy that the supervisor is gone
        self._tether.tell(order=dict(self._order, supervisor=me.to_json() if me else None))
        return child

    def ended(self, pid: int) -> bool:
        """Whether ``pid``, just reaped, was the deputy: the number may be another process's from now on."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process = None
        return True

    def pids(self) -> List[int]:
        """Never to be stopped with the job."""
        return [self._process.pid] if self._process is not None else []


def serve_as_deputy() -> None:
    """The deputy's process."""
    os.umask(0o077)
    processes.set_name("ddpctl-deputy")
    listener = TetherListener(0)
    while "order" not in listener.words:
        if not listener.listen(1.0):
            return
    order = listener.words["order"]
    supervisor = processes.from_json(order["supervisor"])
    known: Set[Tuple[int, int]] = set()

    def look() -> None:
        nonlocal known
        found = None if supervisor is None else _note(order["cookie"], supervisor)
        known = known if found is None else found

    detail = wait_until_gone(listener, supervisor, look)
    burial = Leftovers(order["cookie"], sorted(known), (), supervisor, listener.words)
    clean_up(RunPaths(order["node"]), burial, detail)


def _note(cookie: str, supervisor: processes.ProcessId) -> Optional[Set[Tuple[int, int]]]:
    """Who belongs to the run; None when the supervisor died in between, and what was below it hangs nowhere now."""
    found = processes.members(cookie, [supervisor.pid], [supervisor.pid])
    return {(one.pid, one.start) for one in found.values()} if processes.is_alive(supervisor) else None
