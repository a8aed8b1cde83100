"""Hosts that could not be asked at all, by cause. The verdict reads the connection's error; there is no question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.checks.limits import ALIKE_HOSTS
from ddpctl.errors import (
    AgentSilent,
    AuthRefused,
    ConnectError,
    DdpctlError,
    HostKeyChanged,
    HostKeyUnknown,
    NameUnknown,
    PythonMissing,
    RemoteError,
    ShellBroken,
)
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_by, join_steps, one_line
from ddpctl_worker.wire.contract import NO_SPACE, UNSAFE_PATH, UNWRITABLE

# Errors of a worker's start (see ddpctl_worker.wire.boot) that another check reports.
DISK_KINDS = frozenset({NO_SPACE})
FOLDER_KINDS = frozenset({UNWRITABLE, UNSAFE_PATH})


def judge_errors(view: View, belongs: Callable[[DdpctlError], bool], fix: str) -> list[Finding]:
    """Return a finding for every host with an error that belongs to this check; ALIKE_HOSTS and more share a finding.

    ``fix`` is for errors without a hint.
    """
    own = {target.name: view.errors[target.name] for target in view.targets if target.name in view.errors}
    found = [
        report.error(
            host,
            one_line(error.message),
            fix=error.hint or fix,
            evidence={"error": type(error).__name__, "kind": getattr(error, "kind", None)},
        )
        for host, error in own.items()
        if belongs(error)
    ]
    alike = group_by(lambda finding: finding.group_key, found).values()
    return [finding for group in alike for finding in ([_for_all(group)] if len(group) >= ALIKE_HOSTS else group)]


def _for_all(group: Sequence[Finding]) -> Finding:
    """Return a finding that stands for many hosts."""
    first = group[0]
    fixes = [finding.fix for finding in group if finding.fix]
    shared = {finding.nameless(finding.fix) for finding in group if finding.fix}
    return replace(
        first,
        message=f"{len(group)} hosts, for example {first.host}: {first.message}",
        host=None,
        fix=shared.pop() if len(shared) == 1 else join_steps(fixes) if fixes else None,
        evidence={**first.evidence, "hosts": [finding.host for finding in group]},
    )


def _check(
    check: str, title: str, belongs: Callable[[DdpctlError], bool], *, cause: str, symptom: str, fix: str
) -> Check:
    def judge(view: View) -> Iterable[Finding]:
        found = judge_errors(view, belongs, fix)
        if not found and any(view.answers.get(target.name) for target in view.targets):
            return [report.ok(title)]
        return found

    return Check(check, title, judge, cause=cause, symptom=symptom, fix=fix, seen=ON_HOSTS)


def _is(*kinds: type[DdpctlError]) -> Callable[[DdpctlError], bool]:
    return lambda error: isinstance(error, kinds)


def _other_connection(error: DdpctlError) -> bool:
    named = (NameUnknown, HostKeyUnknown, HostKeyChanged, AuthRefused, AgentSilent, ShellBroken)
    return isinstance(error, ConnectError) and not isinstance(error, named)


def _other_remote(error: DdpctlError) -> bool:
    reported = DISK_KINDS | FOLDER_KINDS
    mine = isinstance(error, RemoteError) and not isinstance(error, PythonMissing) and error.kind not in reported
    return mine or not isinstance(error, (ConnectError, RemoteError))


CHECKS = (
    _check(
        "ssh.name",
        "host names have addresses",
        _is(NameUnknown),
        cause="The host's name in the inventory is in no DNS zone, no /etc/hosts and no Host block of ssh_config.",
        symptom="ssh: Could not resolve hostname node3: Name or service not known",
        fix="Write `address:` for the host in the inventory, or HostName for it in ssh_config.",
    ),
    _check(
        "ssh.connect",
        "SSH connects",
        _other_connection,
        cause="The host is down, another port is used, a firewall drops or rejects port 22, there is no route, or sshd "
        "accepts the connection and then sends nothing (too many logins at once: MaxStartups). A connection that dies "
        "while it is in use counts too.",
        symptom="ssh: connect to host node3 port 22: Connection refused / Connection timed out / No route to host; "
        "kex_exchange_identification: Connection closed by remote host",
        fix="Check that the host is up, and which port its sshd uses (`port:` in the inventory, Port in ssh_config); "
        "behind a bastion, name it with `jump:`.",
    ),
    _check(
        "ssh.host_key",
        "host keys are known and unchanged",
        _is(HostKeyUnknown, HostKeyChanged),
        cause="known_hosts has no key of this host, or another key: a new machine, a reinstalled machine, or an "
        "attacker in between. ddpctl never adds or replaces a key by itself.",
        symptom="Host key verification failed. / REMOTE HOST IDENTIFICATION HAS CHANGED!",
        fix="Unknown: `ddpctl trust` shows the SHA-256 of each key and adds it once you have compared it. Changed: "
        "find out why; only then `ssh-keygen -f FILE -R HOST` and `ddpctl trust`.",
    ),
    _check(
        "ssh.auth",
        "the host accepts a key",
        _is(AuthRefused, AgentSilent),
        cause="The account's authorized_keys has no key of yours, the user is wrong, a certificate has expired, "
        "or the agent that holds the key does not answer.",
        symptom="Permission denied (publickey,password).",
        fix="`ssh-copy-id -p PORT USER@HOST`, or name the right `user:` and `identity_file:` in the inventory.",
    ),
    _check(
        "ssh.shell",
        "the login shell runs commands",
        _is(ShellBroken),
        cause="The login works, but the account's shell is nologin, or the profile ends the shell, waits for input, or "
        "starts another program before ddpctl's command runs.",
        symptom="This account is currently not available. / a command over ssh prints nothing and ends with 1",
        fix="In ~/.bashrc put commands for interactive shells after `case $- in *i*) ;; *) return;; esac`.",
    ),
    _check(
        "host.worker",
        "ddpctl's worker runs on the node",
        _other_remote,
        cause="The connection and the interpreter work, but ddpctl's own program on the node answered with an error.",
        symptom="the worker's own error",
        fix="See the message; `--debug` shows the worker's traceback for a bug report.",
    ),
)
