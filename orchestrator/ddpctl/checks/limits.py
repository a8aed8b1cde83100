"""What a login on the host may use: shared memory, temporary space, limits, memory, processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import size
from ddpctl.checks.host import MACHINE
from ddpctl.spec.finding import Finding, Severity

SHM = Question("disk", {"path": "/dev/shm"}, 8.0)
TMP = Question("disk", {"path": "/tmp"}, 8.0)
CGROUP = Question("cgroup")

MIB = 1 << 20
SHM_LEAST = 32 * MIB  # NCCL alone takes about 10 MB for each pair of ranks on a node
SHM_A_RANK = 256 * MIB  # Docker's default is 64 MB for all
TMP_LEAST = 16 * MIB
FILES_LEAST = 4096
PROCESSES_LEAST = 1024
MEMORY_A_RANK = 512 * MIB
PIDS_A_RANK = 64


def _ask(*questions: Question) -> Callable[[Target, Want], Iterable[Question]]:
    return lambda target, want: questions


def ranks(target: Target) -> int:
    """Processes of the job on the host, at least 1; where that is not known yet, 1."""
    return max(1, target.nproc or 1)


def _targets(view: View) -> dict[str, Target]:
    return {target.name: target for target in view.targets}


def _judge_shm(view: View) -> Iterable[Finding]:
    targets = _targets(view)
    for host, fs in view.values_of(SHM).items():
        if not fs["exists"] or fs["mount"] != "/dev/shm":
            message = "/dev/shm is not mounted: DataLoader workers and NCCL need it"
            fix = f"ssh {host} sudo mount -t tmpfs -o size=50% tmpfs /dev/shm"
            yield Finding("host.shm", Severity.ERROR, message, host, fix=fix, evidence=fs)
            continue
        fix = f"ssh {host} sudo mount -o remount,size=50% /dev/shm"
        if fs["write_error"] and "ENOSPC" not in fs["write_error"]:
            message = f"/dev/shm cannot be written: {fs['write_error']}"
            fix = f"ssh {host} sudo chmod 1777 /dev/shm"
            yield Finding("host.shm", Severity.ERROR, message, host, fix=fix, evidence=fs)
        elif fs["total"] < SHM_LEAST:
            message = f"/dev/shm has {size(fs['total'])}: DataLoader workers die with a bus error, NCCL cannot start"
            yield Finding("host.shm", Severity.ERROR, message, host, fix=fix, evidence=fs)
        elif fs["free"] < SHM_LEAST // 2:
            message = f"/dev/shm is full: {size(fs['free'])} of {size(fs['total'])} free"
            fix = f"ssh {host} 'ls -lhS /dev/shm | head' shows whose files they are"
            yield Finding("host.shm", Severity.ERROR, message, host, fix=fix, evidence=fs)
        elif fs["total"] < SHM_A_RANK * ranks(targets[host]):
            message = (
                f"/dev/shm has {size(fs['total'])} for {ranks(targets[host])} process(es): little for "
                "DataLoader workers (a container wants --shm-size=8g or --ipc=host)"
            )
            yield Finding("host.shm", Severity.WARNING, message, host, fix=fix, evidence=fs)


def _judge_tmp(view: View) -> Iterable[Finding]:
    for host, fs in view.values_of(TMP).items():
        if fs["write_error"] or fs["free"] < TMP_LEAST:
            why = fs["write_error"] or f"{size(fs['free'])} free"
            yield Finding(
                "host.tmp",
                Severity.WARNING,
                f"/tmp cannot be used ({why}): torch's launcher and Python's tempfile want it",
                host,
                fix=f"clean /tmp of {host}, or set TMPDIR for it (`env:`)",
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
                fix=f"ssh {host} \"printf '* soft {option} unlimited\\n* hard {option} unlimited\\n' | sudo tee "
                f'/etc/security/limits.d/90-{option}.conf", then log in again',
                evidence={name: value["limits"][name]},
            )


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
    targets = _targets(view)
    for host, value in view.values_of(MACHINE).items():
        memory, need = value["memory"], MEMORY_A_RANK * ranks(targets[host])
        if memory["available"] < need:
            yield Finding(
                "host.memory",
                Severity.WARNING,
                f"{size(memory['available'])} of {size(memory['total'])} memory available for {ranks(targets[host])} "
                f"process(es): importing torch alone takes about {size(MEMORY_A_RANK)} each",
                host,
                fix=f"ssh {host} 'ps aux --sort=-rss | head' shows what uses it",
                evidence=memory,
            )


def _judge_cgroup(view: View) -> Iterable[Finding]:
    targets = _targets(view)
    for host, value in view.values_of(CGROUP).items():
        many = ranks(targets[host])
        for message, limit in _tight(value, many):
            yield Finding(
                "host.cgroup",
                Severity.WARNING,
                f"{message} ({limit['folder']})",
                host,
                fix="give the container or the systemd slice more: `docker run --memory --cpus --pids-limit`, or "
                "`systemctl set-property user.slice MemoryMax= CPUQuota= TasksMax=`",
                evidence=value,
            )


def _tight(value: dict[str, Any], many: int) -> Iterable[tuple[str, dict[str, Any]]]:
    memory, cpus, pids = value["memory"], value["cpus"], value["pids"]
    if memory and memory["limit"] - memory["used"] < MEMORY_A_RANK * many:
        allowed, used = size(memory["limit"]), size(memory["used"])
        yield (
            f"a control group allows {allowed} of memory, {used} are in use: the kernel kills what goes beyond",
            memory,
        )
    if cpus and cpus["limit"] < many:
        yield f"a control group allows {cpus['limit']:g} processors for {many} process(es)", cpus
    if pids and pids["limit"] - pids["used"] < PIDS_A_RANK * many:
        yield f"a control group allows {pids['limit']:.0f} processes and threads, {pids['used']:.0f} are in use", pids


def _judge_cpus(view: View) -> Iterable[Finding]:
    targets = _targets(view)
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
        "host.cgroup",
        "control groups leave room",
        _ask(CGROUP),
        _judge_cgroup,
        Doc(
            cause="The container or slice that the login lives in is limited in memory, processors or number of "
            "processes.",
            symptom="killed ranks while the machine has free memory; BlockingIOError at fork; slow start",
            fix="Raise the limits of the container or slice.",
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
