"""Disks: free space, inodes, writable folders, shared memory and temporary space."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Requirements, Target, View
from ddpctl.checks.limits import (
    DISK_LEAST_BYTES,
    DISK_LOW_BYTES,
    DISK_S,
    INODES_GIVEN,
    INODES_LEAST,
    SHM_A_RANK_BYTES,
    SHM_LEAST_BYTES,
    TMP_LEAST_BYTES,
)
from ddpctl.checks.report import size
from ddpctl.checks.ssh import DISK_KINDS, FOLDER_KINDS, judge_errors
from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.question import Question
from ddpctl.spec.values import plural

SHM = Question("disk", {"path": "/dev/shm"}, DISK_S)
TMP = Question("disk", {"path": "/tmp"}, DISK_S)

_REMOUNT = "mount -o remount,size=50% /dev/shm"
_LARGEST = "ls -lhS /dev/shm | head"
_FIX_SHM = "a remount lasts until the next reboot: see /etc/fstab; a container needs --shm-size=8g or --ipc=host"
_FIX_READ_ONLY = (
    "a failing disk turns read-only: check the kernel log first. A remount lasts until the next reboot: see "
    "/etc/fstab. Or set `base_dir:` to another disk"
)


def base_dir(target: Target, want: Requirements) -> Question:
    return Question("disk", {"path": target.base_dir}, DISK_S)


def _of_kind(kinds: frozenset[str]) -> Callable[[DdpctlError], bool]:
    return lambda error: isinstance(error, RemoteError) and error.kind in kinds


# --- base_dir --------------------------------------------------------------------------------------------------------


def _judge_room(view: View) -> Iterable[Finding]:
    make_room = "make room there, or set `base_dir:` to another disk"
    yield from judge_errors(view, _of_kind(DISK_KINDS), make_room)
    asked = (view.requirements.free_disk_gb or 0) * 10**9
    for host, fs in view.values(base_dir).items():
        free, place = fs["free"], f"{fs['path']} (on {fs['mount']})"
        fix = "`ddpctl gc` removes old runs and environments; or set `base_dir:` to another disk"
        command = f"du -xh {shlex.quote(fs['mount'])} 2>/dev/null | sort -h | tail -20"
        if free < max(DISK_LEAST_BYTES, asked):
            need = (
                f"the job needs {view.requirements.free_disk_gb:g} GB"
                if asked > DISK_LEAST_BYTES
                else f"{size(DISK_LEAST_BYTES)} is the minimum"
            )
            message = f"{size(free)} free for {place}, {need}"
            yield report.error(host, message, fix=fix, command=command, evidence=fs)
        elif free < DISK_LOW_BYTES:
            message = f"only {size(free)} free for {place}"
            yield report.warning(host, message, fix=fix, command=command, evidence=fs)


def _judge_inodes(view: View) -> Iterable[Finding]:
    for host, fs in view.values(base_dir).items():
        if fs["inodes"] and fs["inodes_free"] < INODES_LEAST:  # some file systems do not count inodes
            yield report.error(
                host,
                f"{fs['inodes_free']} of {fs['inodes']} inodes free on {fs['mount']}: no file can be created, however "
                "much space is free",
                fix="remove or pack the folder with the many small files, or set `base_dir:` to another disk",
                command=_more_inodes(view, host, fs),
                evidence=fs,
            )


def _more_inodes(view: View, host: str, fs: dict[str, Any]) -> str:
    """Return a command: more inodes for a tmpfs, or else the folders with the most inodes."""
    if fs["kind"] == "tmpfs":
        return _remount(view, host, fs, f"nr_inodes={max(INODES_GIVEN, 2 * fs['inodes'])}")
    return f"du --inodes -x {shlex.quote(fs['mount'])} 2>/dev/null | sort -n | tail -20"


def _judge_folder(view: View) -> Iterable[Finding]:
    own_folder = "set `base_dir:` to a folder of your own that can be written"
    yield from judge_errors(view, _of_kind(FOLDER_KINDS), own_folder)
    for host, fs in view.values(base_dir).items():
        if fs["write_error"] and not _full(fs):
            yield report.error(
                host,
                f"{fs['path']} cannot be written: {fs['write_error']}",
                fix=_FIX_READ_ONLY
                if fs["read_only"]
                else f"give it to the login's user, or set `base_dir:` of {host} to a folder that it may write",
                # a person decides who owns the folder
                command=_remount(view, host, fs, "rw") if fs["read_only"] else None,
                evidence=fs,
            )
        elif fs["noexec"]:
            yield _noexec(view, host, fs)


def _remount(view: View, host: str, fs: dict[str, Any], option: str) -> str:
    return report.as_root(view, host, f"mount -o remount,{option} {shlex.quote(fs['mount'])}")


def _noexec(view: View, host: str, fs: dict[str, Any]) -> Finding:
    managed = view.requirements.managed
    harm = "an environment cannot run from there" if managed else "output there cannot be assigned to its rank"
    return report.finding(
        Severity.ERROR if managed else Severity.INFO,
        host,
        f"{fs['path']} is on {fs['mount']}, which is mounted noexec: {harm}",
        fix="a remount lasts until the next reboot: remove noexec from /etc/fstab as well; or set `base_dir:` to "
        "another disk",
        command=_remount(view, host, fs, "exec"),
        evidence=fs,
    )


def _full(fs: dict[str, Any]) -> bool:
    """Return whether the folder is not writable for lack of space, which host.disk reports."""
    return "ENOSPC" in fs["write_error"] or fs["free"] < DISK_LEAST_BYTES


# --- /dev/shm and /tmp -----------------------------------------------------------------------------------------------


def _judge_shm(view: View) -> Iterable[Finding]:
    for host, fs in view.values(SHM).items():
        found = _shm_fault(fs, view.target(host).ranks)
        if found is not None:
            severity, message, command = found
            yield report.finding(
                severity,
                host,
                message,
                fix=_FIX_SHM if command.startswith("mount") else None,
                command=command if command == _LARGEST else report.as_root(view, host, command),
                evidence=fs,
            )


def _shm_fault(fs: dict[str, Any], many: int) -> tuple[Severity, str, str] | None:
    """Return (severity, message, command to run as root)."""
    if not fs["exists"] or fs["mount"] != "/dev/shm":
        message = "/dev/shm is not mounted: DataLoader workers and NCCL need it"
        return Severity.ERROR, message, "mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm"
    if fs["write_error"] and "ENOSPC" not in fs["write_error"]:
        writable = "mount -o remount,rw /dev/shm" if fs["read_only"] else "chmod 1777 /dev/shm"
        return Severity.ERROR, f"/dev/shm cannot be written: {fs['write_error']}", writable
    total = size(fs["total"])
    if fs["total"] < SHM_LEAST_BYTES:
        message = f"/dev/shm has {total}: DataLoader workers die with a bus error, NCCL cannot start"
        return Severity.ERROR, message, _REMOUNT
    if fs["free"] < SHM_LEAST_BYTES // 2:
        return Severity.ERROR, f"/dev/shm is full: {size(fs['free'])} of {total} free", _LARGEST
    if fs["total"] < SHM_A_RANK_BYTES * many:
        message = f"/dev/shm has {total} for {plural(many, 'process')}: little for DataLoader workers"
        return Severity.WARNING, message, _REMOUNT
    return None


def _judge_tmp(view: View) -> Iterable[Finding]:
    for host, fs in view.values(TMP).items():
        if fs["write_error"] or fs["free"] < TMP_LEAST_BYTES:
            why = fs["write_error"] or f"{size(fs['free'])} free"
            yield report.warning(
                host,
                f"/tmp cannot be used ({why}): torch's launcher and Python's tempfile need it",
                fix="remove unused files, or set TMPDIR to another folder for this host (`env:`)",
                command="du -xah /tmp 2>/dev/null | sort -h | tail -20",
                evidence=fs,
            )
        elif fs["noexec"]:
            yield report.warning(
                host,
                "/tmp is mounted noexec: torch.compile and Triton build libraries there and load them",
                fix="a job without torch.compile is not affected; or set TMPDIR and TRITON_CACHE_DIR to a folder "
                "elsewhere (`env:`). A remount lasts until the next reboot: remove noexec from /etc/fstab as well",
                command=_remount(view, host, fs, "exec"),
                evidence=fs,
            )


CHECKS = (
    Check(
        "host.disk",
        "free disk space",
        _judge_room,
        ask=(base_dir,),
        cause="The disk that holds base_dir is full or nearly so, or has less than the job's `requires.free_disk_gb`.",
        symptom="OSError: [Errno 28] No space left on device, often only at the first checkpoint",
        fix="Make room (`ddpctl gc` removes old runs and environments), or move `base_dir:` to another disk.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.inodes",
        "free inodes",
        _judge_inodes,
        ask=(base_dir,),
        cause="The file system has free space but no free inodes: millions of small files.",
        symptom="No space left on device, while df shows free space",
        fix="Find the folder with the many files (`du --inodes`) and remove or pack them.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.base_dir",
        "base_dir can be written",
        _judge_folder,
        ask=(base_dir,),
        cause="The folder for ddpctl's files on the node (by default below the home folder) is read-only, belongs to "
        "another user, is a symbolic link, or cannot hold programs (noexec): an error where an environment is to run "
        "from it; otherwise lines of output are not assigned to their rank.",
        symptom="Read-only file system / Permission denied at the very first step",
        fix="Set `base_dir:` in the inventory to a folder of your own on a local disk.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.shm",
        "shared memory is large enough",
        _judge_shm,
        ask=(SHM,),
        cause="/dev/shm is missing, full, or as small as Docker's default of 64 MB. DataLoader workers pass their "
        "batches through it, and NCCL connects the ranks of a node through it.",
        symptom="DataLoader worker (pid 46794) is killed by signal: Bus error; posix_fallocate failed: No space left "
        "on device",
        fix="`--shm-size=8g` for a container, `mount -o remount,size=50% /dev/shm` otherwise.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.tmp",
        "/tmp can be used",
        _judge_tmp,
        ask=(TMP,),
        cause="/tmp is full or read-only.",
        symptom="No usable temporary directory found; the launcher puts its files elsewhere or fails",
        fix="Clean it, or set TMPDIR.",
        seen=ON_HOSTS,
    ),
)
