"""The machine, the login and the file systems: cores, memory, limits, cgroups, free space."""

from __future__ import annotations

import errno
import os
import pwd
import re
import resource
import stat
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.facts import number, program_seconds, user_name
from ddpctl_worker.machine import systemd, tool
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.proc import boot_id, parse_meminfo
from ddpctl_worker.rules.login import PROPERTIES, read_settings

_LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "AS", "CPU", "FSIZE", "DATA", "STACK")
_CAP_IPC_LOCK = 14
_NOEXEC = getattr(os, "ST_NOEXEC", 8)


def machine(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return names, usable cores, memory in bytes, and resource limits as [soft, hard] (``None``: unlimited)."""
    return {
        "hostname": os.uname().nodename,
        "boot_id": boot_id(),
        "machine_id": read_text("/etc/machine-id", limit=64).strip(),
        "container": in_container(),
        "locks_memory": may_lock_memory(),
        "network_namespace": os.readlink("/proc/self/ns/net"),
        "user": user_name(),
        "uid": os.getuid(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory(),
        "limits": {name.lower(): read_limit(name) for name in _LIMITS},
    }


def in_container() -> bool:
    """Return whether Docker, Podman or systemd-nspawn have left their marks."""
    return any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"))


def may_lock_memory() -> bool:
    """Return whether the limit of locked memory does not apply: CAP_IPC_LOCK in the first user namespace."""
    status = read_text("/proc/self/status")
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    first = read_text("/proc/self/uid_map").split() == ["0", "0", "4294967295"]
    return bool(match and int(match.group(1), 16) & 1 << _CAP_IPC_LOCK) and first


def memory() -> Dict[str, int]:
    """Return ``total`` and ``available`` in bytes."""
    sizes = parse_meminfo(read_text("/proc/meminfo"))
    total = sizes.get("MemTotal", 0)
    return {"total": total, "available": sizes.get("MemAvailable", total)}


def read_limit(name: str) -> List[Optional[int]]:
    """Return [soft, hard] of a resource limit."""
    pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    return [None if value == resource.RLIM_INFINITY else value for value in pair]


def cgroup(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the tightest limits of the cgroups around this process, version 1 or 2; ``None``: no limit.

        memory    bytes, bytes in use, and the bytes in use that are page cache
        cpus      cores' worth of time
        pids      most, and now

    Each limit has the folder that sets it.
    """
    found: Dict[str, Any] = {"memory": None, "cpus": None, "pids": None}
    for controllers, folder in _cgroup_folders():
        for level in _upward(folder, controllers[1]):
            if controllers[0] & {"memory", ""}:
                _tighter(found, "memory", memory_limit(level), level)
            if controllers[0] & {"cpu", ""}:
                _tighter(found, "cpus", _cpu_max(level), level)
            if controllers[0] & {"pids", ""}:
                _tighter(found, "pids", _pids_max(level), level)
    return found


def _tighter(found: Dict[str, Any], key: str, value: Optional[List[float]], level: str) -> None:
    """Keep the level that leaves the least."""
    known = found[key]
    if value is None:
        return
    made = {"limit": value[0], "used": value[1], "cache": value[2] if len(value) > 2 else 0.0, "folder": level}
    if known is None or _room(made) < _room(known):
        found[key] = made


def _room(level: Dict[str, Any]) -> float:
    return float(level["limit"] - level["used"] + level["cache"])


def _cgroup_folders() -> List[Tuple[Tuple[Any, str], str]]:
    """Return ((controllers, mount point), folder) of each hierarchy; version 2 has the controllers {''}."""
    mounts = []
    for line in read_text("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] in ("cgroup", "cgroup2"):
            mounts.append((fields[2], fields[1], set(fields[3].split(","))))
    found = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, names_, path = line.split(":", 2)
        wanted = set(names_.split(","))
        for kind, point, options in mounts:
            if (kind == "cgroup2" and names_ == "") or (kind == "cgroup" and names_ and wanted <= options):
                found.append(((wanted, point), os.path.normpath(point + "/" + path)))
    return found


def _upward(folder: str, top: str) -> List[str]:
    levels = []
    while folder.startswith(top):
        levels.append(folder)
        if folder == top:
            break
        folder = os.path.dirname(folder)
    return levels


def memory_limit(folder: str) -> Optional[List[float]]:
    """Return [limit, in use, page cache] of a cgroup in bytes, or ``None`` without a limit."""
    for most, now in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        value = number(folder + "/" + most)
        if value is not None and value < 1 << 60:  # version 1 spells "no limit" as a huge number
            return [value, number(folder + "/" + now) or 0.0, _page_cache(folder)]
    return None


def _page_cache(folder: str) -> float:
    """Return the bytes of cached files (without tmpfs). Version 1 counts the groups below under ``total_``."""
    stat = dict(line.split(" ", 1) for line in read_text(folder + "/memory.stat").splitlines() if " " in line)
    prefix = "total_" if "total_active_file" in stat else ""
    return sum(float(stat.get(prefix + name, 0)) for name in ("active_file", "inactive_file"))


def _cpu_max(folder: str) -> Optional[List[float]]:
    parts = read_text(folder + "/cpu.max", limit=64).split()
    if len(parts) == 2 and parts[0] != "max":
        return [float(parts[0]) / float(parts[1]), 0.0]
    quota, period = number(folder + "/cpu.cfs_quota_us"), number(folder + "/cpu.cfs_period_us")
    if quota is not None and period and quota > 0:
        return [quota / period, 0.0]
    return None


def _pids_max(folder: str) -> Optional[List[float]]:
    value = number(folder + "/pids.max")
    return None if value is None else [value, number(folder + "/pids.current") or 0.0]


def login(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return systemd-logind's action at the end of a session, as busctl prints it, and whether the user lingers.

    ``may_linger``: whether the user may turn lingering on, if that is asked for; ``None``: not known. ``user_bus``:
    whether the bus of the user's own systemd is there.
    """
    user = user_name()
    found: Dict[str, Any] = {
        "systemd": systemd.is_running(),
        "user": user,
        "uid": os.getuid(),
        "linger": systemd.lingers(user),
        "may_linger": None,
        "user_bus": systemd.has_user_bus(),
        "cgroup": read_text("/proc/self/cgroup"),
        "busctl": None,
    }
    if found["systemd"]:
        seconds = program_seconds(context) / 2  # two programs, one after the other
        found["busctl"] = systemd.ask_logind(PROPERTIES, seconds)
        if read_settings(found["busctl"]).get("kill") and found["user_bus"] and not found["linger"]:
            found["may_linger"] = systemd.may_linger(seconds)
    return found


def shell(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Run the account's shell as sshd does, and return its output and its time before any command."""
    program = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    if "SSH_CONNECTION" not in os.environ:
        return {"shell": program, "ran": False, "printed": "", "seconds": 0.0}
    env = {name: value for name, value in os.environ.items() if name != "SHLVL"}  # bash reads ~/.bashrc at level 0
    result = tool.run([program, "-c", ":"], timeout=program_seconds(context), replace_env=env)
    return {
        "shell": program,
        "ran": True,
        "printed": (result["stdout"] + result["stderr"])[:500],
        "timed_out": result["timed_out"],
        "seconds": result["seconds"],
    }


def disk(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the file system of ``params["path"]`` (or its nearest existing parent); sizes in bytes.

    ``write_error``: ``None`` if a file of one page could be created, written and removed there.
    """
    path = os.path.abspath(os.path.expanduser(params["path"]))
    folder = nearest_folder(path)
    room = os.statvfs(folder)
    owner = os.stat(folder)
    mount, kind = mount_of(folder)
    return {
        "path": path,
        "exists": os.path.isdir(path),
        "folder": folder,
        "total": room.f_blocks * room.f_frsize,
        "free": room.f_bavail * room.f_frsize,
        "inodes": room.f_files,
        "inodes_free": room.f_favail,
        "read_only": bool(room.f_flag & os.ST_RDONLY),
        "noexec": bool(room.f_flag & _NOEXEC),
        "mount": mount,
        "kind": kind,
        "owner": owner.st_uid,
        "mode": stat.S_IMODE(owner.st_mode),
        "uid": os.getuid(),
        "link": os.path.islink(path),
        "write_error": write_error(folder),
    }


def nearest_folder(path: str) -> str:
    """Return the path, or its nearest parent that is a folder."""
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return path


def write_error(folder: str) -> Optional[str]:
    """Return why a small file cannot be written in the folder, or ``None`` if it can. Leaves nothing behind."""
    try:
        handle, name = tempfile.mkstemp(prefix=".ddpctl-probe-", dir=folder)
    except OSError as error:
        return _reason(error)
    try:
        os.write(handle, b"\0" * 4096)
        return None
    except OSError as error:
        return _reason(error)
    finally:
        os.close(handle)
        os.unlink(name)


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "?")
    return "%s (%s)" % (os.strerror(error.errno or 0), name)


def mount_of(folder: str) -> Tuple[str, str]:
    """Return mount point and type of the file system: of the longest mount point above, the last mount there."""
    real = os.path.realpath(folder)
    best: List[str] = ["/", "?"]
    for line in read_text("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = [point, fields[2]]
    return best[0], best[1]
