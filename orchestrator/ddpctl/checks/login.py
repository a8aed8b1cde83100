"""What the login does to a job: the session's end, the profile, the variables and libraries it leaves behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity
from ddpctl_worker.contract import SCRUB_NAMES, SCRUB_PREFIXES

LOGIN = Question("login", deadline=6.0)
SHELL = Question("shell", deadline=10.0)
ENVIRONMENT = Question("environment")
SLOW_SHELL_S = 2.0
SYSTEM_UIDS = 1000  # logind leaves the shared memory of system users alone
RECORDED = "recorded output only: the test machine runs no systemd"
_KEEP = (
    "mkdir -p /etc/systemd/logind.conf.d"
    " && printf '%s\\n' '[Login]' 'KillUserProcesses=no' > /etc/systemd/logind.conf.d/90-ddpctl.conf"
    " && systemctl kill -s HUP systemd-logind"
)


def _ask_login(target: Target, want: Want) -> Iterable[Question]:
    return (LOGIN,)


def _ask_shell(target: Target, want: Want) -> Iterable[Question]:
    return () if target.local else (SHELL,)


def _ask_environment(target: Target, want: Want) -> Iterable[Question]:
    path = target.env.get("LD_LIBRARY_PATH")
    return (Question("environment", {"library_path": path}) if path else ENVIRONMENT,)


# --- systemd-logind --------------------------------------------------------------------------------------------------


def manager(value: Mapping[str, Any]) -> dict[str, Any]:
    """logind's settings from busctl's lines: ``kill``, ``only``, ``exclude``, ``remove_ipc``; empty when not known.

    The lines are ``b false``, ``as 0``, ``as 1 "root"``, ``b true``, in the order they were asked for.
    """
    result = value.get("busctl")
    lines = result["stdout"].splitlines() if result and result["code"] == 0 else []
    if len(lines) != 4:
        return {}
    return {
        "kill": lines[0].strip() == "b true",
        "only": re.findall(r'"([^"]*)"', lines[1]),
        "exclude": re.findall(r'"([^"]*)"', lines[2]),
        "remove_ipc": lines[3].strip() == "b true",
    }


def in_session(value: Mapping[str, Any]) -> bool:
    """Whether the login is a session that logind knows; sshd without PAM makes none."""
    return bool(re.search(r"/session-[^/]*\.scope", value["cgroup"]))


def _judge_kill(view: View) -> Iterable[Finding]:
    """A lingering user's own manager stays, but logind ends the session's scope all the same, and the job is in it."""
    for host, value in view.values_of(LOGIN).items():
        known, user = manager(value), value["user"]
        if not known.get("kill") or user in known["exclude"] or (known["only"] and user not in known["only"]):
            continue
        if in_session(value):
            yield Finding(
                "login.kill",
                Severity.ERROR,
                f"systemd-logind kills all processes of {user} at the end of the session (KillUserProcesses=yes), "
                "lingering or not: a detached job would die with the connection",
                host,
                fix="this is for every user; KillExcludeUsers= is for one. Lingering does not help",
                command=as_root(view, host, f"sh -c {shlex.quote(_KEEP)}"),
                evidence=known,
            )


def _judge_ipc(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(LOGIN).items():
        known = manager(value)
        if not known.get("remove_ipc") or value["linger"] or value["uid"] < SYSTEM_UIDS or in_session(value):
            continue  # while processes of the session's scope live, logind keeps the user's shared memory
        yield Finding(
            "login.ipc",
            Severity.WARNING,
            f"systemd-logind removes the shared memory of {value['user']} at logout (RemoveIPC=yes), and this login is "
            "no session that would keep it",
            host,
            command=as_root(view, host, f"loginctl enable-linger {shlex.quote(value['user'])}"),
            evidence=known,
        )


# --- the profile -----------------------------------------------------------------------------------------------------


def _judge_profile(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(SHELL).items():
        fix = "in ~/.bashrc, put what is meant for people after `case $- in *i*) ;; *) return;; esac`"
        if value.get("timed_out"):
            message = f"{value['shell']} did not start within {value['seconds']:.0f} s: its profile waits for something"
            yield Finding("login.profile", Severity.WARNING, message, host, fix=fix, evidence=value)
        elif value["printed"].strip():
            first = value["printed"].strip().splitlines()[0][:60]
            message = (
                f"the profile prints at every login ({first!r}); harmless, ddpctl reads past it, but scp and rsync fail"
            )
            yield Finding("login.profile", Severity.INFO, message, host, fix=fix, evidence=value)
        elif value["seconds"] > SLOW_SHELL_S:
            message = f"the profile takes {value['seconds']:.1f} s at every login; slow, not wrong"
            yield Finding("login.profile", Severity.INFO, message, host, fix=fix, evidence=value)


# --- variables and libraries -----------------------------------------------------------------------------------------


def scrubbed(name: str) -> bool:
    """Whether ddpctl keeps the variable from the job."""
    return name in SCRUB_NAMES or name.startswith(SCRUB_PREFIXES)


def _environments(view: View) -> dict[str, dict[str, Any]]:
    return view.values(lambda target, want: next(iter(_ask_environment(target, want))))


def _judge_variables(view: View) -> Iterable[Finding]:
    found = _environments(view)
    for host, value in found.items():
        gone = {name: text for name, text in value["variables"].items() if scrubbed(name)}
        if gone:
            listed = ", ".join(f"{name}={text}" for name, text in sorted(gone.items()))
            yield Finding(
                "env.variables",
                Severity.INFO,
                f"the login sets {listed}; harmless, ddpctl takes them out of the job's environment",
                host,
                fix=f"remove them from the profile of {host}: other launchers obey them",
                evidence=gone,
            )
    names = sorted({name for value in found.values() for name in value["variables"] if not scrubbed(name)})
    for name in names:
        overridden = {target.name for target in view.targets if name in target.env}
        values = {host: v["variables"].get(name) for host, v in found.items() if host not in overridden}
        yield from differences(
            "env.variables",
            values,
            what=f"{name}:",
            severity=Severity.WARNING if steers(name) else Severity.INFO,
            fix=f"set {name} in the inventory (`env:`), or in the profile of every host",
            show=lambda value: "not set" if value is None else repr(value),
        )


def steers(name: str) -> bool:
    """Whether a difference between nodes can change how they talk or what they load, not just how fast they are."""
    return name.startswith(("NCCL_", "GLOO_", "TORCH", "CUDA_VISIBLE", "UCX_")) or name in ("LD_PRELOAD", "PYTHONPATH")


def _judge_nccl(view: View) -> Iterable[Finding]:
    found = _environments(view)
    yield from differences(
        "env.nccl",
        {host: value["nccl_conf"] for host, value in found.items()},
        what="NCCL's own settings file:",
        severity=Severity.WARNING,
        fix="make /etc/nccl.conf and ~/.nccl.conf equal, unless they name interfaces that differ",
        show=lambda value: "none" if not value else "; ".join(line for lines in value.values() for line in lines),
    )
    for host, value in found.items():
        if value["libnccl"]:
            yield Finding(
                "env.nccl",
                Severity.WARNING,
                f"LD_LIBRARY_PATH puts {', '.join(value['libnccl'])} before the NCCL that torch brings",
                host,
                fix=f"take that folder out of LD_LIBRARY_PATH on {host}, unless torch was built against it",
                evidence={"libnccl": value["libnccl"]},
            )


CHECKS = (
    Check(
        "login.kill",
        "a job outlives its session",
        _ask_login,
        _judge_kill,
        Doc(
            cause="systemd-logind with KillUserProcesses=yes ends every process of a user when the session ends, "
            "however well it is detached.",
            symptom="the job is gone some seconds after `up -d`, without a traceback",
            fix="KillUserProcesses=no in /etc/systemd/logind.conf. `loginctl enable-linger` keeps the user's services, "
            "not what a login started.",
            verified=RECORDED,
        ),
    ),
    Check(
        "login.ipc",
        "shared memory outlives its session",
        _ask_login,
        _judge_ipc,
        Doc(
            cause="systemd-logind with RemoveIPC=yes (its default) removes a user's files in /dev/shm when the user's "
            "last session ends. A job started from a session keeps that session alive, so this bites only where the "
            "login is none (sshd without PAM).",
            symptom="unable to open shared memory object in read-write mode, some time after the start",
            fix="`loginctl enable-linger USER`.",
            verified=RECORDED,
        ),
    ),
    Check(
        "login.profile",
        "the profile is quiet and quick",
        _ask_shell,
        _judge_profile,
        Doc(
            cause="~/.bashrc prints or waits also when nobody sits there. bash reads it for every command over SSH.",
            symptom="scp and rsync fail with strange protocol errors; every command takes seconds",
            fix="Put it after `case $- in *i*) ;; *) return;; esac`.",
        ),
    ),
    Check(
        "env.variables",
        "no variables in the way",
        _ask_environment,
        _judge_variables,
        Doc(
            cause="A profile on one node sets NCCL_*, GLOO_*, CUDA_VISIBLE_DEVICES, or PET_*, RANK, MASTER_ADDR, which "
            "torch's launcher takes for its defaults.",
            symptom="one node uses another interface, sees other GPUs, or waits for another master",
            fix="ddpctl removes PET_*, RANK, WORLD_SIZE, MASTER_* and their like; set the others in the inventory.",
        ),
    ),
    Check(
        "env.nccl",
        "no other NCCL in the way",
        _ask_environment,
        _judge_nccl,
        Doc(
            cause="A libnccl of the system, a module or an MPI comes before torch's own through LD_LIBRARY_PATH, or "
            "/etc/nccl.conf differs between hosts.",
            symptom="Mismatched NCCL version detected; Message truncated: received N bytes instead of M",
            fix="Unset LD_LIBRARY_PATH for the job.",
        ),
    ),
)
