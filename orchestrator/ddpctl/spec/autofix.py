"""Decides which commands of findings ``preflight --fix`` may run: only commands on a list of allowed changes.

All other commands of findings are left to a person: commands that only look (ps, du), commands that end a process, and
changes on which only the owner decides (sshd, user accounts, the policy of a firewall, the name of a machine, a GPU in
use).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.spec.command import Ran
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.ranges import fold_names

# Of a host, or of neighbours whose addresses fill a network: a fix opens ports for the job's own nodes. The largest
# network has as many addresses as the largest job has nodes (4,096). It is a /20 of IPv4, and a /116 of IPv6.
_ADDRESS = r"(?:[0-9.]*[0-9](?:/(?:2\d|3[0-2]))?|[0-9a-f.]*:[0-9a-f.:]*(?:/1(?:1[6-9]|2[0-8]))?)"
_PORTS = r"\d+(?:[:-]\d+)?"
_NAME = r"[\w.-]+"
# Program -> the pattern that all of its arguments, as one line, must match. The program has no folder, so that root
# finds it in root's own PATH.
_CHANGES: Mapping[str, str] = {
    "chmod": r"1777 /dev/shm",
    "firewall-cmd": rf"--reload|--permanent (--zone={_NAME} )?--add-rich-rule=rule family=\"ipv[46]\" source "
    rf'address="{_ADDRESS}" port port="{_PORTS}" protocol="tcp" accept',
    "ip": r"link set dev [\w.@-]+ mtu \d+",
    "iptables": (
        _IPTABLES := rf"-w 5 (-t {_NAME} )?-I {_NAME} 1 -p tcp -[sd] {_ADDRESS}(,{_ADDRESS})* "
        rf"-m multiport --dports {_PORTS}(,{_PORTS})* -j ACCEPT"
    ),
    "ip6tables": _IPTABLES,
    "modprobe": r"nvidia|nvidia-peermem|amdgpu",
    "mount": r"-o remount,(rw|exec|size=\d+%|nr_inodes=\d+) /[\w./-]*|-t tmpfs -o size=\d+%,mode=1777 tmpfs /dev/shm",
    "nft": rf"insert rule {_NAME} {_NAME} {_NAME} ip6? [sd]addr ({_ADDRESS}|\{{ {_ADDRESS}(, {_ADDRESS})* \}}) "
    rf"tcp dport ({_PORTS}|\{{ {_PORTS}(, {_PORTS})* \}}) accept",
    "nvidia-smi": r"-pm 1",
    "sysctl": r"-w( net\.[\w.]+=\d+)+",
    "systemctl": r"enable --now nvidia-[\w-]+|set-property [\w.@-]+\.slice( \w+=\w+)+",
    "tee": r"-a /etc/hosts|/etc/security/limits\.d/zz-ddpctl-\w+\.conf",
    "timedatectl": r"set-ntp true",
    "ufw": rf"prepend allow proto tcp from {_ADDRESS} to any port {_PORTS}(,{_PORTS})*"
    rf"|prepend allow out proto tcp to {_ADDRESS} port {_PORTS}(,{_PORTS})*",
}
_FEEDS = ("echo", "printf")  # they produce the text for a program on the list, such as tee
_OPERATORS = ("&&", "|")
_EXPANDED = frozenset("*?[]{}~#!\\")  # a shell may change a word that has one of these, and an unquoted $ or `
# Forbidden in every command. The list above allows nothing of this; the pattern protects later versions of the list.
_NEVER = re.compile(
    r"sshd|/etc/ssh|authorized_keys|known_hosts|\bssh\b"
    r"|\b(user|group)(add|mod|del)\b|passwd|shadow|sudoers|visudo|gpasswd|chsh"
    r"|--policy|\s-P\s|policy (accept|drop)|\bflush\b|\s-[FX]\b|set-target|set-default-zone|panic"
    r"|\bufw (--\w+ )?(default|disable|reset|delete)\b|\b(stop|disable|mask|restart)\b"
)


@dataclass(frozen=True)
class Fix:
    """A command, the host to run it on, and the check that proposes it."""

    host: str
    check: str
    command: str

    @property
    def wants_root(self) -> bool:
        return wants_root(self.command)


@dataclass(frozen=True)
class Applied:
    """A fix that was run, and its outcome."""

    fix: Fix
    ran: Ran

    def to_json(self) -> dict[str, Any]:
        output = self.ran.error or f"{self.ran.stdout}{self.ran.stderr}"
        return {**vars(self.fix), "exit_code": self.ran.exit_code, "output": output}


def automatic_fixes(findings: Iterable[Finding]) -> tuple[Fix, ...]:
    """Return the fixes of errors and warnings that may be run, each once per host, in the order of the findings."""
    found: dict[tuple[str, str], Fix] = {}
    for finding in findings:
        problem = finding.severity in (Severity.ERROR, Severity.WARNING)
        if problem and finding.host and finding.command and may_run(finding.command):
            fix = Fix(finding.host, finding.check, finding.command)
            found.setdefault((fix.host, fix.command), fix)
    return tuple(found.values())


def wants_root(command: str) -> bool:
    """Return whether the command calls sudo. The whole command then runs as root, where sudo has no effect."""
    return "sudo" in command.split()


def exec_line(hosts: Sequence[str], command: str) -> str:
    """Return the line that runs a finding's command on these hosts from here, as ``preflight --fix`` would."""
    words = ["ddpctl", "exec", *(["--sudo"] if wants_root(command) else []), "--host", fold_names(hosts), "--"]
    return shlex.join([*words, *(_after_sudo(command) or ("sh", "-c", command))])


def _after_sudo(command: str) -> list[str] | None:
    """Return the words after ``sudo`` of a command that needs no shell."""
    if not command.startswith("sudo ") or set(command) & _EXPANDED:
        return None
    try:
        parts = _parts(command)
    except ValueError:
        return None
    return parts[0] if len(parts) == 1 and not parts[0][0].startswith("-") else None


def may_run(command: str) -> bool:
    """Return whether ``command`` makes a change, and every change in it is on the list."""
    if _NEVER.search(command):
        return False
    try:
        parts = _parts(command)
    except ValueError:
        return False
    changes = [part for part in parts if part[:1] and part[0] not in _FEEDS]
    return bool(changes) and all(_is_listed(part) for part in changes) and all(parts)


def _parts(command: str) -> list[list[str]]:
    """Return the simple commands of a line, without sudo.

    Raises:
        ValueError: the line has anything but words and the operators in _OPERATORS.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word in _OPERATORS:
            parts.append([])
        elif set(word) & set("();<>|&`$\n"):
            raise ValueError(f"not a plain word: {word}")
        elif word != "sudo" or parts[-1]:
            parts[-1].append(word)
    return parts


def _is_listed(part: Sequence[str]) -> bool:
    pattern = _CHANGES.get(part[0])
    return pattern is not None and re.fullmatch(pattern, " ".join(part[1:])) is not None
