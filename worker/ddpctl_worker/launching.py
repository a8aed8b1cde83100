"""The launcher of a run: claimed, started, and found again by the process that must end it."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ddpctl_worker import cgroup, processes, record, spawn
from ddpctl_worker.cgroup import ControlGroup
from ddpctl_worker.drain import Drain
from ddpctl_worker.lines import STDERR, STDOUT
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.processes import ProcessId


class TooLate(Exception):
    """The start was given up meanwhile, by somebody who has taken the claim."""


class Launching:
    """``order`` is the guardian's; ``launcher`` is there once it has been started."""

    def __init__(self, order: Dict[str, Any], paths: RunPaths, guardian: ProcessId) -> None:
        self._order, self._run, self._paths = order, order["run"], paths
        self._me = processes.identify(os.getpid())
        self._guardian = guardian
        self.group: Optional[ControlGroup] = None
        self.launcher: Optional[ProcessId] = None

    def claim(self) -> None:
        """Say on disk who runs this, before there is anything that somebody may have to end.

        Raises:
            TooLate: somebody else has claimed it.
            OSError: the disk takes nothing.
        """
        self.group = cgroup.make(self._run["run"], self._run["host"])
        if not record.write_once(self._paths.claim, self.names(), durable=False):
            self.leave_group()
            raise TooLate("the start of this run took too long and was given up")

    def start(self, drain: Drain) -> Optional[str]:
        """Spawn the launcher and hand its pipes and those of its ranks to ``drain``; why that was not possible."""
        oom_score = spawn.protect_from_oom()
        if self._order.get("shim"):
            for local in range(int(self._run["nproc"])):
                drain.add(spawn.open_fifo(self._paths.fifo(local, "out")), local, STDOUT)
                drain.add(spawn.open_fifo(self._paths.fifo(local, "err")), local, STDERR)
        called_off = (self._paths.stop, self._paths.exit)
        prepare = spawn.BeforeExec(oom_score, int(self._order["umask"]), self.group, called_off)
        try:
            child = spawn.spawn(self._order["argv"], self._order["cwd"], self._order["env"], prepare)
        except OSError as error:
            return "cannot start %s: %s" % (self._order["argv"][0], error.strerror or error)
        self.launcher = processes.identify(child.pid)
        if self.group is not None and child.pid not in self.group.pids() and processes.is_alive(self.launcher):
            self.leave_group()  # it could not enter, so an empty group would prove nothing
        drain.add(child.out, None, STDOUT)
        drain.add(child.err, None, STDERR)
        return None

    def names(self) -> Dict[str, Any]:
        """Who runs this, and how whatever belongs to it is found."""
        return {
            "supervisor": self._me.to_json() if self._me else None,
            "guardian": self._guardian.to_json(),
            "launcher": self.launcher.to_json() if self.launcher else None,
            "cookie": self._order["cookie"],
            "group": self.group.path if self.group else None,
        }

    def leave_group(self) -> None:
        if self.group is not None:
            self.group.remove()
        self.group = None
