"""Which commands of findings ``preflight --fix`` may run: a list of those allowed; all else is left to a person.

A finding's command may also only look (ps, du), end a process, or change what nobody but its owner decides: sshd, user
accounts, a firewall's policy, a machine's name, a GPU that somebody may be using. None of that is on the list.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.spec.command import Ran
from ddpctl.spec.finding import Finding, Severity

# Program -> what its arguments must be, as one line. What is not matched whole is not run.
_CHANGES: Mapping[str, str] = {
    "chmod": r"1777 /dev/shm",
    "firewall-cmd": r"--reload|--permanent (--zone=[\w-]+ )?--add-rich-rule=rule .* accept",
    "ip": r"link set dev [\w.@-]+ mtu \d+",
    "ip6tables": r"-w 5 (-t \w+ )?-I [\w-]+ 1 -p tcp .* -j ACCEPT",
    "iptables": r"-w 5 (-t \w+ )?-I [\w-]+ 1 -p tcp .* -j ACCEPT",
    "modprobe": r"[\w-]+",
    "mount": r"-o remount,[\w=%,]+ /[\w./-]*|-t tmpfs -o [\w=%,]+ tmpfs /dev/shm",
    "nft": r"insert rule .* tcp dport [^;]* accept",
    "nvidia-smi": r"-pm 1",
    "sysctl": r"-w( net\.[\w.]+=\d+)+",
    "systemctl": r"enable --now nvidia-[\w-]+|set-property [\w.@-]+\.slice( \w+=\w+)+",
    "tee": r"-a /etc/hosts|/etc/security/limits\.d/90-ddpctl-\w+\.conf",
    "timedatectl": r"set-ntp true",
    "ufw": r"prepend allow (out )?proto tcp .*",
}
_FEEDS = ("echo", "printf")  # what is written comes out of these
_OPERATORS = ("&&", "|")
# In whatever command: the list above names none of these, and this holds if it grows.
_NEVER = re.compile(
    r"sshd|/etc/ssh|authorized_keys|known_hosts|\bssh\b"
    r"|\b(user|group)(add|mod|del)\b|passwd|shadow|sudoers|visudo|gpasswd|chsh"
    r"|--policy|\s-P\s|policy (accept|drop)|\bflush\b|\s-[FX]\b|set-target|set-default-zone|panic"
    r"|\bufw (--\w+ )?(default|disable|reset|delete)\b|\b(stop|disable|mask|restart)\b"
)


@dataclass(frozen=True)
class Fix:
    """A command, the host that it is for, and the check that asked for it."""

    host: str
    check: str
    command: str

    @property
    def wants_root(self) -> bool:
        """Whether it calls sudo. All of it is run as root then, where sudo changes nothing any more."""
        return "sudo" in self.command.split()


@dataclass(frozen=True)
class Applied:
    """A fix that was run, and how that went."""

    fix: Fix
    ran: Ran

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it."""
        output = self.ran.error or f"{self.ran.stdout}{self.ran.stderr}"
        return {**vars(self.fix), "exit_code": self.ran.exit_code, "output": output}


def automatic(findings: Iterable[Finding]) -> tuple[Fix, ...]:
    """The fixes of errors and warnings that may be run, each once a host, in the findings' order."""
    found: dict[tuple[str, str], Fix] = {}
    for finding in findings:
        problem = finding.severity in (Severity.ERROR, Severity.WARNING)
        if problem and finding.host and finding.command and may_run(finding.command):
            fix = Fix(finding.host, finding.check, finding.command)
            found.setdefault((fix.host, fix.command), fix)
    return tuple(found.values())


def may_run(command: str) -> bool:
    """Whether every part of ``command`` is a change on the list, and at least one of them is a change."""
    if _NEVER.search(command):
        return False
    try:
        parts = _parts(command)
    except ValueError:
        return False
    changes = [part for part in parts if part[:1] and part[0] not in _FEEDS]
    return bool(changes) and all(_is_listed(part) for part in changes) and all(parts)


def _parts(command: str) -> list[list[str]]:
    """The simple commands of a line, without sudo.

    Raises:
        ValueError: it has more in it than words and the operators that we print.
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
    pattern = _CHANGES.get(part[0].rpartition("/")[2])
    return pattern is not None and re.fullmatch(pattern, " ".join(part[1:])) is not None
