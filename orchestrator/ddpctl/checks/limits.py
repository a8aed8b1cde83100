"""What a login on the host may use: shared memory, temporary space, limits, memory, processors."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import size
from ddpctl.checks.host import MACHINE
from ddpctl.checks.shell import as_root, write_as_root
from ddpctl.spec.finding import Finding, Severity

SHM = Question("disk", {"path": "/dev/shm"}, 8.0)
TMP = Question("disk", {"path": "/tmp"}, 8.0)

MIB = 1 << 20
SHM_LEAST = 32 * MIB  # NCCL alone takes about 10 MB for each pair of ranks on a node
SHM_A_RANK = 256 * MIB  # Docker's default is 64 MB for all
TMP_LEAST = 16 * MIB
FILES_LEAST = 4096
PROCESSES_LEAST = 1024
MEMORY_A_RANK = 512 * MIB
MOST_FILES = 1048576  # the kernel's own maximum (fs.nr_open) where nobody raised it

REMOUNT = "mount -o remount,size=50% /dev/shm"
LARGEST = "ls -lhS /dev/shm | head"
SHM_FIX = "a remount lasts until the next reboot: see /etc/fstab; a container wants --shm-size=8g or --ipc=host"
RELOGIN = "it holds from the next login on; in a container, give --ulimit to `docker run` instead"


def _ask(*questions: Question) -> Callable[[Target, Want], Iterable[Question]]:
    return lambda target, want: questions


def ranks(target: Target) -> int:
    """Processes of the job on the host, at least 1; where that is not known yet, 1."""
    return max(1, target.nproc or 1)


def targets_by_name(view: View) -> dict[str, Target]:
    return {target.name: target for target in view.targets}


def _judge_shm(view: View) -> Iterable[Finding]:
    targets = targets_by_name(view)
    for host, fs in view.values_of(SHM).items():
        found = _shm_fault(fs, ranks(targets[host]))
        if found is not None:
            severity, message, command = found
            yield Finding(
                "host.shm",
                severity,
                message,
                host,
                fix=SHM_FIX if command.startswith("mount") else None,
                command=command if command == LARGEST else as_root(view, host, command),
                evidence=fs,
            )


def _shm_fault(fs: dict[str, Any], many: int) -> tuple[Severity, str, str] | None:
    """(how bad, what, what to run as root)."""
    if not fs["exists"] or fs["mount"] != "/dev/shm":
        message = "/dev/shm is not mounted: DataLoader workers and NCCL need it"
        return Severity.ERROR, message, "mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm"
    if fs["write_error"] and "ENOSPC" not in fs["write_error"]:
        return Severity.ERROR, f"/dev/shm cannot be written: {fs['write_error']}", _writable(fs)
    total = size(fs["total"])
    if fs["total"] < SHM_LEAST:
        message = f"/dev/shm has {total}: DataLoader workers die with a bus error, NCCL cannot start"
        return Severity.ERROR, message, REMOUNT
    if fs["free"] < SHM_LEAST // 2:
        return Severity.ERROR, f"/dev/shm is full: {size(fs['free'])} of {total} free", LARGEST
    if fs["total"] < SHM_A_RANK * many:
        return Severity.WARNING, f"/dev/shm has {total} for {many} process(es): little for DataLoader workers", REMOUNT
    return None


def _writable(fs: dict[str, Any]) -> str:
    return "mount -o remount,rw /dev/shm" if fs["read_only"] else "chmod 1777 /dev/shm"


def _judge_tmp(view: View) -> Iterable[Finding]:
    for host, fs in view.values_of(TMP).items():
        if fs["write_error"] or fs["free"] < TMP_LEAST:
            why = fs["write_error"] or f"{size(fs['free'])} free"
            yield Finding(
                "host.tmp",
                Severity.WARNING,
                f"/tmp cannot be used ({why}): torch's launcher and Python's tempfile want it",
                host,
                fix="remove what nobody uses, or set TMPDIR to another folder for this host (`env:`)",
                command="du -xah /tmp 2>/dev/null | sort -h | tail -20",
                evidence=fs,
            )
        elif fs["noexec"]:
            yield Finding(
                "host.tmp",
                Severity.WARNING,
                "/tmp is mounted noexec: torch.compile and Triton build libraries there and load them",
                host,
                fix="a job without torch.compile is not harmed; or set TMPDIR and TRITON_CACHE_DIR to a folder "
                "elsewhere (`env:`). A remount lasts until the next reboot: take noexec out of /etc/fstab as well",
                command=as_root(view, host, f"mount -o remount,exec {shlex.quote(fs['mount'])}"),
                evidence=fs,
            )


def _judge_limits(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(MACHINE).items():
        for name, message, option in _low_limits(value):
            yield Finding(
                "host.limits",
                Severity.WARNING,
                message,
                host,
                fix=RELOGIN,
                command=raise_limit(view, host, value["user"], option),
                evidence={name: value["limits"][name]},
            )


def raise_limit(view: View, host: str, user: str, option: str) -> str:
    """For this user alone: ``*`` does not stand for root. Never ``nofile unlimited``: until 2021 pam_limits refused
    the login then."""
    most = MOST_FILES if option == "nofile" else "unlimited"
    who = "*" if user.isdigit() else user
    path = f"/etc/security/limits.d/90-ddpctl-{option}.conf"
    return write_as_root(view, host, path, f"{who} soft {option} {most}", f"{who} hard {option} {most}")


def _low_limits(value: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """(limit, message, option of limits.conf) for each that is too low. A soft limit below the hard one is no trouble:
    any process may raise it."""
    limits = value["limits"]
    hard_files, hard_processes = limits["nofile"][1], limits["nproc"][1]
    if hard_files is not None and hard_files < FILES_LEAST:
        yield "nofile", f"a process may open {hard_files} files (ulimit -n): DataLoader workers need more", "nofile"
    if hard_processes is not None and hard_processes < PROCESSES_LEAST and value["uid"] != 0:
        yield "nproc", f"the user may have {hard_processes} processes and threads (ulimit -u)", "nproc"
    for name, option, what in (
        ("as", "as", "address space (ulimit -v)"),
        ("data", "data", "data segment (ulimit -d)"),
        ("fsize", "fsize", "file size (ulimit -f)"),
    ):
        soft = limits[name][0]
        if soft is not None and soft < (64 << 30):
            yield name, f"the {what} is limited to {size(soft)}: CUDA and checkpoints need more", option
    soft_cpu = limits["cpu"][0]
    if soft_cpu is not None:
        yield "cpu", f"a process is killed after {soft_cpu} s of processor time (ulimit -t)", "cpu"


def _judge_memory(view: View) -> Iterable[Finding]:
    targets = targets_by_name(view)
    for host, value in view.values_of(MACHINE).items():
        memory, need = value["memory"], MEMORY_A_RANK * ranks(targets[host])
        if memory["available"] < need:
            yield Finding(
                "host.memory",
                Severity.WARNING,
                f"{size(memory['available'])} of {size(memory['total'])} memory available for {ranks(targets[host])} "
                f"process(es): importing torch alone takes about {size(MEMORY_A_RANK)} each",
                host,
                fix="end what is not needed, or fewer processes here (`slots:`)",
                command="ps aux --sort=-rss | head",
                evidence=memory,
            )


def _judge_cpus(view: View) -> Iterable[Finding]:
    targets = targets_by_name(view)
    for host, value in view.values_of(MACHINE).items():
        target, cores = targets[host], value["cores"]
        threads = target.env.get("OMP_NUM_THREADS", "")
        many = ranks(target)
        if threads.isdigit() and int(threads) * many > 2 * cores:
            yield Finding(
                "host.cpus",
                Severity.INFO,
                f"OMP_NUM_THREADS={threads} x {many} process(es) on {cores} core(s): slow, not wrong",
                host,
                fix=f"leave OMP_NUM_THREADS out (ddpctl sets cores / processes), or set it to {max(1, cores // many)}",
            )
        elif many > cores:
            yield Finding(
                "host.cpus",
                Severity.INFO,
                f"{many} processes on {cores} core(s): slow, not wrong",
                host,
                fix=f"set `slots: {cores}` for {host}",
            )


CHECKS = (
    Check(
        "host.shm",
        "shared memory is large enough",
        _ask(SHM),
        _judge_shm,
        Doc(
            cause="/dev/shm is missing, full, or as small as Docker's default of 64 MB. DataLoader workers hand over "
            "their batches there, and NCCL connects the ranks of a node through it.",
            symptom="DataLoader worker (pid 46794) is killed by signal: Bus error; posix_fallocate failed: No space "
            "left on device",
            fix="`--shm-size=8g` for a container, `mount -o remount,size=50% /dev/shm` otherwise.",
        ),
    ),
    Check(
        "host.tmp",
        "/tmp can be used",
        _ask(TMP),
        _judge_tmp,
        Doc(
            cause="/tmp is full or read-only.",
            symptom="No usable temporary directory found; the launcher puts its files elsewhere or fails",
            fix="Clean it, or set TMPDIR.",
        ),
    ),
    Check(
        "host.limits",
        "limits of a login",
        _ask(MACHINE),
        _judge_limits,
        Doc(
            cause="limits.conf, systemd or sshd gives a login over SSH lower hard limits than a desktop session.",
            symptom="Too many open files; Resource temporarily unavailable; Cannot allocate memory",
            fix="/etc/security/limits.d, then a new login.",
        ),
    ),
    Check(
        "host.memory",
        "memory is free",
        _ask(MACHINE),
        _judge_memory,
        Doc(
            cause="Other processes have taken nearly all of the memory.",
            symptom="Signal 9 (SIGKILL) received; exitcode -9; the other ranks lose their connection",
            fix="End what uses it, or fewer processes here.",
            verified="recorded output only",
        ),
    ),
    Check(
        "host.cpus",
        "cores for every process",
        _ask(MACHINE),
        _judge_cpus,
        Doc(
            cause="More processes, or processes times OMP_NUM_THREADS, than cores. torchrun by itself sets "
            "OMP_NUM_THREADS=1; ddpctl sets cores / processes.",
            symptom="Setting OMP_NUM_THREADS environment variable for each process to be 1 in default; a slow data "
            "path",
            fix="Fewer processes, or leave OMP_NUM_THREADS to ddpctl.",
        ),
    ),
)
