"""What a check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ddpctl.spec.fold import nameless, numberless, one_line

LEFT_OUT = "left out on request"


class Severity(str, Enum):
    """How bad; the order of the members is worst first.

    ``unknown``: it could not be looked at (root only, not measured). ``skipped``: it does not apply here, or was left
    out on request. Neither is ever counted among what passed; the message says why.
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
    """One verdict of one check: where (``host``, and ``peer`` for a pair), what, how to fix it, and the evidence.

    ``command`` is shell text that runs on ``host`` as it is; ``fix`` is a sentence for a person: what a command cannot
    do, what it costs, and what does not survive a reboot. ``evidence`` is JSON-able.
    """

    check: str
    severity: Severity
    message: str
    host: str | None = None
    peer: str | None = None
    fix: str | None = None
    command: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    on_request: bool = False  # skipped, for --only or --skip said so

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host it is about; where one finding stands for many hosts, those."""
        return (self.host,) if self.host else tuple(self.evidence.get("hosts", ()))

    def nameless(self, text: str) -> str:
        """``text`` with HOST and PEER for the finding's own two, so that what is true of many hosts reads the same."""
        return nameless(nameless(text, self.host, "HOST"), self.peer, "PEER")

    @property
    def gist(self) -> str:
        """The message without names and numbers: findings of one gist say the same."""
        return numberless(self.nameless(one_line(self.message)))

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it."""
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
