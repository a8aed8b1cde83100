"""The findings of the checks, and their severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ddpctl.spec.fold import nameless, numberless, one_line

LEFT_OUT = "left out on request"


class Severity(str, Enum):
    """The severity of a finding; the members are in order, the worst first.

    ``unknown``: the check could not look (root only, not measured). ``skipped``: the check does not apply here, or was
    left out on request. Neither counts as passed; the message says why.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    INFO = "info"
    SKIPPED = "skipped"
    OK = "ok"

    @property
    def order(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """A verdict of a check: the place (``host``, and ``peer`` for a pair), the message, the fix, and the evidence.

    ``command`` is shell text that runs on ``host`` as it is. ``fix`` is a sentence for a person: the steps that no
    command can do, the cost of the fix, and whether it survives a reboot. ``evidence`` can be written as JSON.
    """

    check: str
    severity: Severity
    message: str
    host: str | None = None
    peer: str | None = None
    fix: str | None = None
    command: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    on_request: bool = False  # skipped because of --only or --skip

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the host of the finding; for a finding that stands for many hosts, all of these."""
        return (self.host,) if self.host else tuple(self.evidence.get("hosts", ()))

    def nameless(self, text: str) -> str:
        """Return ``text`` with HOST and PEER in place of the names, so that equal texts of many hosts can be folded."""
        return nameless(nameless(text, self.host, "HOST"), self.peer, "PEER")

    @property
    def group_key(self) -> str:
        """Return the message without names and numbers; findings with equal gists are folded."""
        return numberless(self.nameless(one_line(self.message)))

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.value,
            "host": self.host,
            "peer": self.peer,
            "message": self.message,
            "fix": self.fix,
            "command": self.command,
            "evidence": dict(self.evidence),
        }
