"""Processes of this node: who they are, and which are ranks of a job."""

from __future__ import annotations

import os
import pwd
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import read_text
from ddpctl_worker.facts.port import command_line

_MOST = 200
_MARKS = ("DDPCTL_COOKIE", "TORCHELASTIC_RUN_ID")
_SHOWN = ("DDPCTL_JOB", "DDPCTL_RUN", "TORCHELASTIC_RUN_ID", "RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
# How the worker shows in a command line: started by the bootstrap, or as a module.
_SUPERVISOR = ("ddpctl=json.loads", "ddpctl_worker")


def leftovers(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Every process that a launcher started (torchrun's or ddpctl's variables are in its environment), as far as we may
    look. ``supervised``: a live ddpctl supervisor is among its ancestors; ``launched``: its launcher still lives;
    ``orphan``: its parents are gone up to init."""
    own = ancestors(os.getpid())
    found: List[Dict[str, Any]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in own or int(name) == os.getpid():
            continue
        pid = int(name)
        marks = variables(pid)
        if not any(mark in marks for mark in _MARKS) or is_supervisor(pid):
            continue
        chain = ancestors(pid)
        found.append(
            {
                "pid": pid,
                "user": owner(pid),
                "command": command_line(name),
                "age_s": age(pid),
                "supervised": any(is_supervisor(one) for one in chain),
                "launched": any(any(mark in variables(one) for mark in _MARKS) for one in chain)
                or any(is_launcher(one) for one in [pid, *chain]),
                "orphan": len(chain) <= 1,
                "variables": {key: marks[key] for key in _SHOWN if key in marks},
            }
        )
    found.sort(key=lambda one: int(one["pid"]))
    return {"processes": found[:_MOST], "total": len(found)}


def ancestors(pid: int) -> List[int]:
    """Parent, grandparent, ... up to the first process of this namespace."""
    chain: List[int] = []
    while True:
        fields = stat_fields(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid <= 0 or pid in chain:
            return chain
        chain.append(pid)


def stat_fields(pid: int) -> List[str]:
    """The fields of /proc/PID/stat from the state on (index 0), parent pid at 1, start time at 19."""
    return read_text("/proc/%d/stat" % pid, limit=4096).rpartition(")")[2].split()


def age(pid: int) -> Optional[float]:
    """Seconds since the process started."""
    fields = stat_fields(pid)
    if len(fields) < 20:
        return None
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 1)


def variables(pid: int) -> Dict[str, str]:
    """The environment it was started with; empty when we may not look."""
    found = {}
    for entry in read_text("/proc/%d/environ" % pid).split("\0"):
        name, sign, value = entry.partition("=")
        if sign:
            found[name] = value
    return found


def variable(pid: int, name: str) -> Optional[str]:
    return variables(pid).get(name)


def is_supervisor(pid: int) -> bool:
    """Whether it is ddpctl's own process on the node."""
    line = read_text("/proc/%d/cmdline" % pid, limit=4096)
    return any(mark in line for mark in _SUPERVISOR)


def is_launcher(pid: int) -> bool:
    """Whether it is torch's launcher."""
    line = read_text("/proc/%d/cmdline" % pid, limit=4096)
    return "torch.distributed" in line or "torchrun" in line or read_text("/proc/%d/comm" % pid).strip() == "pt_elastic"


def owner(pid: int) -> Optional[str]:
    """The user it belongs to; None: it is not there."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
