"""Effects of the login on a job: the end of the session, and the profile."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.checks.limits import LOGIN_S, SHELL_S, SLOW_SHELL_S
from ddpctl.spec.finding import Finding
from ddpctl.spec.question import Question
from ddpctl_worker.rules.login import is_session, kills_processes, read_settings

LOGIN = Question("login", deadline=LOGIN_S)
SHELL = Question("shell", deadline=SHELL_S)
SYSTEM_UIDS = 1000  # logind keeps the shared memory of system users
# The last file by name wins, so the name sorts after a site's own files. The last command succeeds if logind has taken
# the value: it reads its files again some milliseconds after the signal.
_KEEP = (
    "mkdir -p /etc/systemd/logind.conf.d"
    ' && printf "[Login]\\nKillUserProcesses=no\\n" > /etc/systemd/logind.conf.d/zz-ddpctl.conf'
    " && systemctl kill -s HUP systemd-logind && sleep 1"
    " && busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
    ' KillUserProcesses | grep -qx "b false"'
)


# --- systemd-logind --------------------------------------------------------------------------------------------------


def _judge_kill(view: View) -> Iterable[Finding]:
    """Report that logind kills all processes of a session at its end.

    That is an error where the run gets no unit of its own (run/scope.py of the worker): a user's own systemd outlives
    the session only if the user lingers. The systemd of the machine has the units of root.
    """
    for host, value in view.values(LOGIN).items():
        known, user = read_settings(value.get("busctl")), value["user"]
        if not kills_processes(known, user) or not is_session(value["cgroup"]):
            continue
        kills = f"systemd-logind kills all processes of {user} at the end of the session (KillUserProcesses=yes)"
        if value["uid"] == 0:
            yield report.info(host, f"{kills}; the run gets a unit of its own, outside the session", evidence=known)
        elif not value.get("user_bus"):
            yield report.error(
                host,
                f"{kills}: a detached job would die with the connection, as {user} has no systemd of its own here",
                fix="this affects every user; KillExcludeUsers= exempts one",
                command=report.as_root(view, host, f"sh -c {shlex.quote(_KEEP)}"),
                evidence=known,
            )
        elif value["linger"] or value.get("may_linger") in (True, None):
            allowed = "" if value.get("may_linger") else ", if polkit allows that"
            turns = f"; the start turns lingering on for {user} (loginctl enable-linger){allowed}"
            lingers = "" if value["linger"] else turns
            message = f"{kills}; the run gets a unit of {user}'s own systemd, which outlives the session{lingers}"
            yield report.info(host, message, evidence=known)
        else:
            yield report.error(
                host,
                f"{kills}: a detached job would die with the connection, as {user} may not turn lingering on",
                fix="this lets runs of this user outlive the session; KillUserProcesses=no does so for every user",
                command=report.as_root(view, host, f"loginctl enable-linger {shlex.quote(user)}"),
                evidence=known,
            )


def _judge_ipc(view: View) -> Iterable[Finding]:
    for host, value in view.values(LOGIN).items():
        known, session = read_settings(value.get("busctl")), is_session(value["cgroup"])
        if not known.get("remove_ipc") or value["linger"] or value["uid"] < SYSTEM_UIDS or session:
            continue  # logind keeps the user's shared memory while processes of the session live
        yield report.warning(
            host,
            f"systemd-logind removes the shared memory of {value['user']} at logout (RemoveIPC=yes), and this login "
            "has no session that keeps it",
            command=report.as_root(view, host, f"loginctl enable-linger {shlex.quote(value['user'])}"),
            evidence=known,
        )


# --- the profile -----------------------------------------------------------------------------------------------------


def _judge_profile(view: View) -> Iterable[Finding]:
    for host, value in view.values(SHELL).items():
        fix = "in ~/.bashrc, put commands for interactive shells after `case $- in *i*) ;; *) return;; esac`"
        if value.get("timed_out"):
            message = f"{value['shell']} did not start within {value['seconds']:.0f} s: its profile waits for something"
            yield report.warning(host, message, fix=fix, evidence=value)
        elif value["printed"].strip():
            first = value["printed"].strip().splitlines()[0][:60]
            message = (
                f"the profile prints at every login ({first!r}); harmless, ddpctl reads past it, but scp and rsync fail"
            )
            yield report.info(host, message, fix=fix, evidence=value)
        elif value["seconds"] > SLOW_SHELL_S:
            message = f"the profile takes {value['seconds']:.1f} s at every login; slow, not wrong"
            yield report.info(host, message, fix=fix, evidence=value)


CHECKS = (
    Check(
        "login.kill",
        "a job outlives its session",
        _judge_kill,
        ask=(LOGIN,),
        cause="systemd-logind with KillUserProcesses=yes ends every process of a user when the session ends, "
        "however well it is detached.",
        symptom="the job is gone some seconds after `up -d`, without a traceback",
        fix="`sudo loginctl enable-linger USER`: the run then gets a unit of the user's own systemd, which outlives "
        "the session. Without such a systemd, KillUserProcesses=no in /etc/systemd/logind.conf.",
        seen=ON_HOSTS,
    ),
    Check(
        "login.ipc",
        "shared memory outlives its session",
        _judge_ipc,
        ask=(LOGIN,),
        cause="systemd-logind with RemoveIPC=yes (its default) removes a user's files in /dev/shm when the user's "
        "last session ends. A job started from a session keeps that session alive, so this happens only where a "
        "login makes no session (sshd without PAM).",
        symptom="unable to open shared memory object in read-write mode, some time after the start",
        fix="`loginctl enable-linger USER`.",
        seen="recorded output only: no host of the tests has systemd and an sshd without PAM",
    ),
    Check(
        "login.profile",
        "the profile is quiet and quick",
        _judge_profile,
        ask=(lambda target, want: None if target.local else SHELL,),
        cause="~/.bashrc prints or waits even without a terminal. bash reads it for every command over SSH.",
        symptom="scp and rsync fail with strange protocol errors; every command takes seconds",
        fix="Put such commands after `case $- in *i*) ;; *) return;; esac`.",
        seen=ON_HOSTS,
    ),
)
