"""Limits of a login on the host: ulimits, memory, processors, control groups, the kernel's network tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.checks.host import MACHINE
from ddpctl.checks.limits import (
    CONNTRACK_FULL_SHARE,
    FILES_GIVEN,
    FILES_LEAST,
    MEMORY_A_RANK_BYTES,
    PIDS_A_RANK,
    PROCESSES_LEAST,
    SEGMENT_LEAST_BYTES,
    SOMAXCONN_GIVEN,
)
from ddpctl.checks.report import size
from ddpctl.spec.finding import Finding
from ddpctl.spec.question import Question
from ddpctl.spec.values import plural

CGROUP = Question("cgroup")
TABLES = Question("tables")


RELOGIN = "it takes effect at the next login; in a container, give --ulimit to `docker run` instead"
_REBOOT = "it lasts until the next reboot: write it into /etc/sysctl.d as well"


# --- the login -------------------------------------------------------------------------------------------------------


def _judge_limits(view: View) -> Iterable[Finding]:
    for host, value in view.values(MACHINE).items():
        for name, message in _low_limits(value):
            yield report.warning(
                host,
                message,
                fix=RELOGIN,
                command=raise_limit(view, host, value["user"], name),
                evidence={name: value["limits"][name]},
            )


def raise_limit(view: View, host: str, user: str, option: str) -> str:
    """Return the command that raises a limit for this user alone: ``*`` does not include root.

    Never ``nofile unlimited``: with it pam_limits refused the login until 2021.
    """
    most = FILES_GIVEN if option == "nofile" else "unlimited"
    who = "*" if user.isdigit() else user
    path = f"/etc/security/limits.d/zz-ddpctl-{option}.conf"
    return report.write_as_root(view, host, path, f"{who} soft {option} {most}", f"{who} hard {option} {most}")


def _low_limits(value: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield (name in limits.conf, message) for each limit that is too low.

    A soft limit below the hard limit is no trouble where a process may raise it.
    """
    limits = value["limits"]
    hard_files, hard_processes = limits["nofile"][1], limits["nproc"][1]
    if hard_files is not None and hard_files < FILES_LEAST:
        yield "nofile", f"a process may open {hard_files} files (ulimit -n): DataLoader workers need more"
    if hard_processes is not None and hard_processes < PROCESSES_LEAST and value["uid"] != 0:
        yield "nproc", f"the user may have {hard_processes} processes and threads (ulimit -u)"
    for name, what in (
        ("as", "address space (ulimit -v)"),
        ("data", "data segment (ulimit -d)"),
        ("fsize", "file size (ulimit -f)"),
    ):
        soft = limits[name][0]
        if soft is not None and soft < SEGMENT_LEAST_BYTES:
            yield name, f"the {what} is limited to {size(soft)}: CUDA and checkpoints need more"
    soft_cpu = limits["cpu"][0]
    if soft_cpu is not None:
        yield "cpu", f"a process is killed after {soft_cpu} s of processor time (ulimit -t)"


# --- the machine -----------------------------------------------------------------------------------------------------


def _judge_memory(view: View) -> Iterable[Finding]:
    for host, value in view.values(MACHINE).items():
        ranks = view.target(host).ranks
        memory, need = value["memory"], MEMORY_A_RANK_BYTES * ranks
        if memory["available"] < need:
            yield report.warning(
                host,
                f"{size(memory['available'])} of {size(memory['total'])} memory available for "
                f"{plural(ranks, 'process')}: importing torch alone takes about {size(MEMORY_A_RANK_BYTES)} each",
                fix="stop processes that are not needed, or run fewer processes here (`slots:`)",
                command="ps aux --sort=-rss | head",
                evidence=memory,
            )


def _judge_cpus(view: View) -> Iterable[Finding]:
    for host, value in view.values(MACHINE).items():
        target, cores = view.target(host), value["cores"]
        threads, many = target.env.get("OMP_NUM_THREADS", ""), target.ranks
        if threads.isdigit() and int(threads) * many > 2 * cores:
            yield report.info(
                host,
                f"OMP_NUM_THREADS={threads} x {plural(many, 'process')} on {plural(cores, 'core')}: slow, not wrong",
                fix=f"leave OMP_NUM_THREADS out (ddpctl sets cores / processes), or set it to {max(1, cores // many)}",
            )
        elif many > cores:
            yield report.info(
                host,
                f"{plural(many, 'process')} on {plural(cores, 'core')}: slow, not wrong",
                fix=f"set `slots: {cores}` for {host}",
            )


# --- around the login ------------------------------------------------------------------------------------------------


def _judge_cgroup(view: View) -> Iterable[Finding]:
    for host, value in view.values(CGROUP).items():
        for message, limit, lift in _tight(value, view.target(host).ranks):
            unit = limit["folder"].rpartition("/")[2]
            of_slice = unit.endswith(".slice")
            more = (
                "raise the limit" if of_slice else "give the container more (`docker run --memory --cpus --pids-limit`)"
            )
            yield report.warning(
                host,
                f"{message} ({limit['folder']})",
                fix=f"{more}, or run fewer processes here",
                command=report.as_root(view, host, f"systemctl set-property {shlex.quote(unit)} {lift}")
                if of_slice
                else None,
                evidence=value,
            )


def _tight(value: dict[str, Any], many: int) -> Iterable[tuple[str, dict[str, Any], str]]:
    """Yield (message, limit, property that lifts it) for each limit that is too low.

    The page cache does not count as used memory: the kernel frees it on demand.
    """
    memory, cpus, pids = value["memory"], value["cpus"], value["pids"]
    used = memory["used"] - memory.get("cache", 0) if memory else 0
    if memory and memory["limit"] - used < MEMORY_A_RANK_BYTES * many:
        message = (
            f"a control group allows {size(memory['limit'])} of memory, {size(used)} are in use: the kernel kills "
            "processes that go beyond"
        )
        yield message, memory, "MemoryMax=infinity"
    if cpus and cpus["limit"] < many:
        yield f"a control group allows {cpus['limit']:g} processors for {plural(many, 'process')}", cpus, "CPUQuota="
    if pids and pids["limit"] - pids["used"] < PIDS_A_RANK * many:
        message = f"a control group allows {pids['limit']:.0f} processes and threads, {pids['used']:.0f} are in use"
        yield message, pids, "TasksMax=infinity"


def _judge_tables(view: View) -> Iterable[Finding]:
    world = sum(target.ranks for target in view.targets)
    for host, found in view.values(TABLES).items():
        used, most, queue = found["conntrack"], found["conntrack_max"], found["somaxconn"]
        if used is not None and most and used > CONNTRACK_FULL_SHARE * most:
            yield report.warning(
                host,
                f"the firewall's connection table is nearly full: {used:.0f} of {most:.0f}; when it is full, new "
                "connections are dropped",
                fix=_REBOOT,
                command=report.as_root(view, host, f"sysctl -w net.netfilter.nf_conntrack_max={2 * int(most)}"),
                evidence=found,
            )
        if queue is not None and queue < world and host == view.requirements.master:
            yield report.warning(
                host,
                f"the master queues {queue:.0f} connections (somaxconn), and {world} processes connect at once: some "
                "will wait",
                fix=_REBOOT,
                command=report.as_root(view, host, f"sysctl -w net.core.somaxconn={max(SOMAXCONN_GIVEN, 2 * world)}"),
                evidence=found,
            )


CHECKS = (
    Check(
        "host.limits",
        "limits of a login",
        _judge_limits,
        ask=(MACHINE,),
        cause="limits.conf, systemd or sshd gives a login over SSH lower hard limits than a desktop session.",
        symptom="Too many open files; Resource temporarily unavailable; Cannot allocate memory",
        fix="/etc/security/limits.d, then a new login.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.memory",
        "memory is free",
        _judge_memory,
        ask=(MACHINE,),
        cause="Other processes have taken nearly all of the memory.",
        symptom="Signal 9 (SIGKILL) received; exitcode -9; the other ranks lose their connection",
        fix="Stop the processes that use it, or run fewer processes there.",
    ),
    Check(
        "host.cpus",
        "cores for every process",
        _judge_cpus,
        ask=(MACHINE,),
        cause="More processes, or processes times OMP_NUM_THREADS, than cores. torchrun by itself sets "
        "OMP_NUM_THREADS=1; ddpctl sets cores / processes.",
        symptom="Setting OMP_NUM_THREADS environment variable for each process to be 1 in default; a slow data path",
        fix="Fewer processes, or leave OMP_NUM_THREADS to ddpctl.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.cgroup",
        "control groups leave room",
        _judge_cgroup,
        ask=(CGROUP,),
        cause="The container or slice that the login runs in is limited in memory, processors or number of processes.",
        symptom="killed ranks while the machine has free memory; BlockingIOError at fork; slow start",
        fix="Raise the limits of the container or slice.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.network",
        "the kernel's network tables have room",
        _judge_tables,
        ask=(TABLES,),
        cause="The connection table of the firewall (nf_conntrack) is nearly full, or the queue of connections "
        "that the master's store may have (net.core.somaxconn) is shorter than the number of processes.",
        symptom="nf_conntrack: table full, dropping packet; Connection timed out at random; a slow rendezvous",
        fix="`sysctl -w net.netfilter.nf_conntrack_max=...`, `sysctl -w net.core.somaxconn=4096`.",
    ),
)
