"""The scope of a run: a unit of systemd that outlives the login, and that systemd ends gently.

A process of a login belongs to the login's unit (``session-3.scope``), and logind may end that unit with the session
(KillUserProcesses=yes). So the first process of a run moves itself to a unit of the user's own systemd, before it
starts any other process:

    user@1000.service/app.slice/ddpctl-RUN.HOST.scope     guardian, supervisor, keeper (agent, waiter)
                                └─ ddpctl-RUN.HOST        launcher and ranks: the group that a kill empties

- The user's own systemd lives without a session only if the user lingers. Without lingering there is no scope.
- systemd stops the scope with SIGWINCH. Ranks ignore that signal; the supervisor has them save (saving.py).
- The scope may have groups below it. So the kernel ends a job at once, also for a user who is not root.
- The death of the user's own systemd ends the scope. So a login that keeps its processes gets no scope
  (docs/decisions/0014-scopes.md), unless the machine's systemd has it: that is the case for root.
"""

from __future__ import annotations

import os
import re
import time
from typing import Optional

from ddpctl_worker.facts import user_name
from ddpctl_worker.machine import notes, systemd
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.rules import login
from ddpctl_worker.run.limits import SCOPE_ANSWER_S, SCOPE_LOOK_S, SCOPE_STOP_S

_GROUPS = "/proc/self/cgroup"
_NAME_CHARACTERS = 200  # of 255 that the name of a unit may have
REFUSED = (
    "systemd-logind would end the run with the login (KillUserProcesses=yes), and the run gets no unit of its own: %s; "
    "see `ddpctl preflight --only login.kill`"
)


def enter_scope(run: RunRecord, must_outlive: bool) -> Optional[str]:
    """Move this process to the run's scope, if the login asks for that. Its children belong to the scope, too.

    Return why the run must not start: it would not outlive its login, and ``must_outlive`` demands that. ``None``: it
    may start.
    """
    groups = read_text(_GROUPS)
    if not systemd.is_running() or systemd.find_scope(groups) or not login.is_session(groups):
        return None
    root, user = os.geteuid() == 0, user_name()
    if not root and not _kills_processes(user):
        return None
    trouble = _move(name_of_scope(run), root, user)
    if trouble is None:
        return None
    notes.note("the run has no unit of its own: %s" % trouble)
    return REFUSED % trouble if must_outlive and _kills_processes(user) else None


def name_of_scope(run: RunRecord) -> str:
    """Return the name of the run's unit on this host."""
    name = re.sub(r"[^A-Za-z0-9:_.-]", "_", "ddpctl-%s.%s" % (run["run"], run["host"]))
    return name[:_NAME_CHARACTERS] + ".scope"


def _kills_processes(user: str) -> bool:
    """Return whether logind ends the processes of the user with the session."""
    return login.kills_processes(login.read_settings(systemd.ask_logind(login.PROPERTIES, SCOPE_ANSWER_S)), user)


def _move(name: str, root: bool, user: str) -> Optional[str]:
    """Move this process to a new unit ``name``; return why that failed, or ``None``."""
    if not root and not systemd.lingers(user):
        trouble = systemd.enable_linger(SCOPE_ANSWER_S)
        if trouble is not None or not systemd.lingers(user):
            return "%s may not linger (%s)" % (user, trouble or "loginctl enable-linger had no effect")
        notes.note("%s lingers from now on (loginctl enable-linger)" % user)
    trouble = systemd.make_scope(name, os.getpid(), SCOPE_STOP_S, user=not root, timeout=SCOPE_ANSWER_S)
    if trouble is not None:
        return trouble
    until = time.monotonic() + SCOPE_ANSWER_S
    while systemd.find_scope(read_text(_GROUPS)) != name:  # systemd answers before it has moved the process
        if time.monotonic() > until:
            return "systemd did not move the run to %s" % name
        time.sleep(SCOPE_LOOK_S)
    return None
