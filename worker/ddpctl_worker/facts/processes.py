"""Processes of this node: the holders of a TCP port, and the ranks of jobs."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Dict, List, Optional, Set

from ddpctl_worker.facts import user_name
from ddpctl_worker.facts.limits import COMMAND_LETTERS, MOST_LEFTOVERS
from ddpctl_worker.machine import net, proc
from ddpctl_worker.machine.fs import read_number
from ddpctl_worker.machine.notes import boottime
from ddpctl_worker.wire.contract import ENV_JOB, ENV_JOB_ID, ENV_RUN

_MARKS = ("DDPCTL_COOKIE", "TORCHELASTIC_RUN_ID")
_SHOWN = (ENV_JOB, ENV_JOB_ID, ENV_RUN, "TORCHELASTIC_RUN_ID", "RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
# The worker's command line contains the bootstrap or the module's name.
_SUPERVISOR = (b"ddpctl=json.loads", b"ddpctl_worker")
_STATES = {"01": "established", "02": "syn-sent", "06": "time-wait", "08": "close-wait", "0A": "listening"}
UNPRIVILEGED = 1024  # the first port that every user may bind, if the kernel does not say


def port(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Bind ``params["port"]`` as the launcher's store will (SO_REUSEADDR, every address), without listening.

    Without SO_REUSEADDR a port in TIME_WAIT, which does not disturb the launcher, would look taken.
    """
    number = int(params["port"])
    error = bind_error(number)
    start = read_number("/proc/sys/net/ipv4/ip_unprivileged_port_start")  # 0 in many containers
    return {
        "port": number,
        "error": error,
        "owners": owners(number) if error else [],
        "ephemeral": list(net.port_range()),
        "unprivileged_start": UNPRIVILEGED if start is None else start,
        "uid": os.getuid(),
    }


def bind_error(number: int) -> Optional[str]:
    """Return the errno's name of a failed bind on IPv4 or IPv6, or ``None`` if the port is free on both."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # IPv6 is switched off: the store then listens on IPv4 alone
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, number))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                return errno.errorcode.get(error.errno or 0, str(error))
        finally:
            sock.close()
    return None


def owners(number: int) -> List[Dict[str, Any]]:
    """Return every socket on this local port and, as far as this user may see, its process."""
    found = [one for one in net.tcp_sockets() if one.port == number and one.state != net.TIME_WAIT]
    processes = holders({one.inode for one in found})
    return [
        dict(
            processes.get(one.inode, {"pid": None}),
            state=_STATES.get(one.state, one.state),
            address=one.address,
            user=user_name(one.uid),
        )
        for one in found
    ]


def holders(inodes: Set[int]) -> Dict[int, Dict[str, Any]]:
    """Return pid and command line of a process that holds each socket inode. Other users' processes are hidden."""
    found: Dict[int, Dict[str, Any]] = {}
    for pid in proc.pids() if inodes else ():
        try:
            held = proc.sockets(pid) & inodes - found.keys()
        except OSError:  # the process ended meanwhile, or belongs to another user
            continue
        for inode in held:
            marks = proc.variables(pid)
            found[inode] = {
                "pid": pid,
                "command": proc.command_line(pid, COMMAND_LETTERS),
                "job": marks.get(ENV_JOB),
                "run": marks.get(ENV_RUN),
            }
    return found


def leftovers(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return every process with the variables of torchrun or ddpctl in its environment, as far as this user may see.

    supervised   a live ddpctl supervisor is among its ancestors
    launched     its launcher lives
    orphan       its ancestors are gone up to init
    """
    own = {os.getpid(), *ancestors(os.getpid())}
    found: List[Dict[str, Any]] = []
    for pid in sorted(proc.pids()):
        marks = proc.variables(pid) if pid not in own else {}
        if not any(mark in marks for mark in _MARKS) or is_supervisor(pid):
            continue
        chain = ancestors(pid)
        found.append(
            {
                "pid": pid,
                "user": owner(pid),
                "command": proc.command_line(pid, COMMAND_LETTERS),
                "age_s": age(pid),
                "supervised": any(is_supervisor(one) for one in chain),
                "launched": any(any(mark in proc.variables(one) for mark in _MARKS) for one in chain)
                or any(is_launcher(one) for one in [pid, *chain]),
                "orphan": len(chain) <= 1,
                "variables": {key: marks[key] for key in _SHOWN if key in marks},
            }
        )
    return {"processes": found[:MOST_LEFTOVERS], "total": len(found)}


def ancestors(pid: int) -> List[int]:
    """Return parent, grandparent and so on, up to the first process of this namespace."""
    chain: List[int] = []
    while True:
        found = proc.read_stat(pid)
        pid = found.parent if found else 0
        if pid <= 0 or pid in chain:
            return chain
        chain.append(pid)


def age(pid: int) -> Optional[float]:
    """Return the seconds since the process started."""
    found = proc.read_stat(pid)
    return round(boottime() - found.start / os.sysconf("SC_CLK_TCK"), 1) if found else None


def is_supervisor(pid: int) -> bool:
    """Return whether the process is a worker of ddpctl."""
    line = proc.read_file(pid, "cmdline") or b""
    return any(mark in line for mark in _SUPERVISOR)


def is_launcher(pid: int) -> bool:
    """Return whether the process is torch's launcher."""
    line, found = proc.read_file(pid, "cmdline") or b"", proc.read_stat(pid)
    return b"torch.distributed" in line or b"torchrun" in line or (found is not None and found.name == "pt_elastic")


def owner(pid: int) -> Optional[str]:
    """Return the user of the process, or ``None`` if it is gone."""
    try:
        return user_name(os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return None
