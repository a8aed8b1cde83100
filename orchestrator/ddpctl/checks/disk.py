"""Disks: room, inodes, and folders that can be written."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import size
from ddpctl.checks.connection import DISK_KINDS, FOLDER_KINDS, judge_errors
from ddpctl.checks.shell import as_root
from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.finding import Finding, Severity

LEAST = 100_000_000  # bytes: a run's records and logs need some room
LOW = 1_000_000_000
GB = 1_000_000_000
LEAST_INODES = 1000
MANY_INODES = 1_000_000
DEADLINE_S = 8.0
_FIX_READ_ONLY = (
    "a disk that fails turns read-only: look into the kernel log first. A remount lasts until the next reboot: see "
    "/etc/fstab. Or set `base_dir:` to another disk"
)


def base_dir(target: Target) -> Question:
    return Question("disk", {"path": target.base_dir}, DEADLINE_S)


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (base_dir(target),)


def values(view: View) -> dict[str, dict[str, Any]]:
    """host -> the file system of its base_dir."""
    return view.values(lambda target, want: base_dir(target))


def _kind(error: DdpctlError, kinds: frozenset[str]) -> bool:
    return isinstance(error, RemoteError) and error.kind in kinds


def _judge_room(view: View) -> Iterable[Finding]:
    make_room = "make room there, or set `base_dir:` to another disk"
    yield from judge_errors("host.disk", lambda error: _kind(error, DISK_KINDS), view, make_room)
    wanted = (view.want.free_disk_gb or 0) * GB
    for host, fs in values(view).items():
        free, place = fs["free"], f"{fs['path']} (on {fs['mount']})"
        fix = "`ddpctl gc` removes old runs and environments; or set `base_dir:` to another disk"
        command = f"du -xh {shlex.quote(fs['mount'])} 2>/dev/null | sort -h | tail -20"
        if free < max(LEAST, wanted):
            need = f"the job wants {view.want.free_disk_gb:g} GB" if wanted > LEAST else f"{size(LEAST)} is the least"
            message = f"{size(free)} free for {place}, {need}"
            yield Finding("host.disk", Severity.ERROR, message, host, fix=fix, command=command, evidence=fs)
        elif free < LOW:
            message = f"only {size(free)} free for {place}"
            yield Finding("host.disk", Severity.WARNING, message, host, fix=fix, command=command, evidence=fs)


def _judge_inodes(view: View) -> Iterable[Finding]:
    for host, fs in values(view).items():
        if fs["inodes"] and fs["inodes_free"] < LEAST_INODES:  # some file systems count none
            yield Finding(
                "host.inodes",
                Severity.ERROR,
                f"{fs['inodes_free']} of {fs['inodes']} inodes free on {fs['mount']}: no file can be made, whatever "
                "room is left",
                host,
                fix="remove or pack the folder with the many small files, or set `base_dir:` to another disk",
                command=_more_inodes(view, host, fs),
                evidence=fs,
            )


def _more_inodes(view: View, host: str, fs: dict[str, Any]) -> str:
    """A tmpfs can be given more; of any other file system, where they went."""
    if fs["kind"] == "tmpfs":
        many = max(MANY_INODES, 2 * fs["inodes"])
        return as_root(view, host, f"mount -o remount,nr_inodes={many} {shlex.quote(fs['mount'])}")
    return f"du --inodes -x {shlex.quote(fs['mount'])} 2>/dev/null | sort -n | tail -20"


def _judge_folder(view: View) -> Iterable[Finding]:
    own_folder = "set `base_dir:` to a folder of your own that can be written"
    yield from judge_errors("host.base_dir", lambda error: _kind(error, FOLDER_KINDS), view, own_folder)
    for host, fs in values(view).items():
        if fs["write_error"] and not _full(fs):
            yield Finding(
                "host.base_dir",
                Severity.ERROR,
                f"{fs['path']} cannot be written: {fs['write_error']}",
                host,
                fix=_FIX_READ_ONLY
                if fs["read_only"]
                else f"give it to the login, or set `base_dir:` of {host} to a folder that it may write",
                command=_writable(view, host, fs),
                evidence=fs,
            )
        elif fs["noexec"]:
            yield _noexec(view, host, fs)


def _writable(view: View, host: str, fs: dict[str, Any]) -> str | None:
    """A read-only file system is mounted again; whose folder it is nobody but a person decides."""
    return as_root(view, host, f"mount -o remount,rw {shlex.quote(fs['mount'])}") if fs["read_only"] else None


def _noexec(view: View, host: str, fs: dict[str, Any]) -> Finding:
    managed = view.want.managed
    harm = "an environment cannot run from there" if managed else "output there cannot be told apart by rank"
    return Finding(
        "host.base_dir",
        Severity.ERROR if managed else Severity.INFO,
        f"{fs['path']} lies on {fs['mount']}, mounted noexec: {harm}",
        host,
        fix="a remount lasts until the next reboot: take noexec out of /etc/fstab as well; or set `base_dir:` to "
        "another disk",
        command=as_root(view, host, f"mount -o remount,exec {shlex.quote(fs['mount'])}"),
        evidence=fs,
    )


def _full(fs: dict[str, Any]) -> bool:
    """A folder that cannot be written for want of room is host.disk's finding."""
    return "ENOSPC" in fs["write_error"] or fs["free"] < LEAST


DISK = Check(
    "host.disk",
    "free disk space",
    _ask,
    _judge_room,
    Doc(
        cause="The disk that holds base_dir is full or nearly so, or has less than the job's `requires.free_disk_gb`.",
        symptom="OSError: [Errno 28] No space left on device, often only at the first checkpoint",
        fix="Make room (`ddpctl gc` removes old runs and environments), or move `base_dir:` to another disk.",
    ),
)
INODES = Check(
    "host.inodes",
    "free inodes",
    _ask,
    _judge_inodes,
    Doc(
        cause="The file system has room but no inodes left: millions of small files.",
        symptom="No space left on device, while df shows free space",
        fix="Find the folder with the many files (`du --inodes`) and remove or pack them.",
    ),
)
FOLDER = Check(
    "host.base_dir",
    "base_dir can be written",
    _ask,
    _judge_folder,
    Doc(
        cause="The folder for ddpctl's files on the node (by default below the home folder) is read-only, belongs to "
        "somebody else, is a symbolic link, or cannot hold programs (noexec): an error where an environment is to run "
        "from it; otherwise only the ranks' outputs are not told apart.",
        symptom="Read-only file system / Permission denied at the very first step",
        fix="Set `base_dir:` in the inventory to a folder of your own on a local disk.",
    ),
)

CHECKS = (DISK, INODES, FOLDER)
