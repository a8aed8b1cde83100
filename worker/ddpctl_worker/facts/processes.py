"""Processes of this node: who holds a TCP port, and which are ranks of a job."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import time
from typing import Any, Dict, List, Optional, Set

from ddpctl_worker.fs import read_text

_STATES = {"01": "established", "02": "syn-sent", "06": "time-wait", "08": "close-wait", "0A": "listening"}
_TIME_WAIT = "06"


def port(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Bind ``params["port"]`` just as the launcher's store will (SO_REUSEADDR, every address), without listening.

    Without SO_REUSEADDR a port in TIME_WAIT, which does the launcher no harm, would look taken.
    """
    number = int(params["port"])
    error = bind_error(number)
    low, high = (int(part) for part in read_text("/proc/sys/net/ipv4/ip_local_port_range").split())
    start = read_text("/proc/sys/net/ipv4/ip_unprivileged_port_start").strip()
    return {
        "port": number,
        "error": error,
        "owners": owners(number) if error else [],
        "ephemeral": [low, high],
        "unprivileged_start": int(start) if start else 1024,
        "uid": os.getuid(),
    }


def bind_error(number: int) -> Optional[str]:
    """The errno's name that a bind of the port gives on IPv4 or IPv6; None when it is free on both."""
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
    """Every socket on this local port and, as far as we may see, the process that holds it."""
    sockets = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(table, limit=64 << 20).splitlines()[1:]:
            fields = line.split()
            address, _, local = fields[1].rpartition(":")
            if int(local, 16) == number and fields[3] != _TIME_WAIT:
                sockets.append((fields[9], _STATES.get(fields[3], fields[3]), _address(address), int(fields[7])))
    processes = holders({inode for inode, _, _, _ in sockets})
    return [
        dict(processes.get(inode, {"pid": None}), state=state, address=address, user=_user(uid))
        for inode, state, address, uid in sockets
    ]


def holders(inodes: Set[str]) -> Dict[str, Dict[str, Any]]:
    """Socket inode -> pid and command line of a process that holds it. Other users' processes are closed to us."""
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    found: Dict[str, Dict[str, Any]] = {}
    for pid in os.listdir("/proc") if wanted else ():
        if not pid.isdigit():
            continue
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):
                inode = wanted.get(os.readlink("/proc/%s/fd/%s" % (pid, fd)))
                if inode and inode not in found:
                    found[inode] = {"pid": int(pid), "command": command_line(pid), "job": _job(pid)}
        except OSError:  # it ended meanwhile, or it is not ours to see
            continue
    return found


def command_line(pid: str) -> str:
    """What ps would show, at most 300 characters."""
    text = read_text("/proc/%s/cmdline" % pid, limit=4096).replace("\0", " ").strip()
    return (text or "[%s]" % read_text("/proc/%s/comm" % pid).strip())[:300]


def _job(pid: str) -> Optional[str]:
    """The ddpctl job that the process belongs to, if any."""
    for entry in read_text("/proc/%s/environ" % pid).split("\0"):
        if entry.startswith("DDPCTL_JOB="):
            return entry.partition("=")[2]
    return None


def _address(text: str) -> str:
    """An address of /proc/net/tcp (32-bit words in the machine's byte order) in its usual spelling."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
