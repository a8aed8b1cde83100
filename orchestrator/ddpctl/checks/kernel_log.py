"""Xid events: what the NVIDIA driver wrote into the kernel log since the machine started."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.gpu import RECORDED
from ddpctl.spec.finding import Finding, Severity

LOG = Question("kernel_log", deadline=8.0)
FRESH_S = 86400.0  # an older fault of a GPU that was reset since is a warning

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?:,\s*(?P<rest>.*))?")
_FALLEN = re.compile(r"NVRM:.*?GPU(?: at)? (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+).*?fallen off the bus", re.DOTALL)
_TIME = re.compile(r"^\[\s*(?P<seconds>\d+\.\d+)\]")

# NVIDIA's Xid catalogue, as far as it says that the GPU, not the program, is at fault.
_FATAL = {
    48: "uncorrectable memory error",
    62: "the GPU's internal controller halted",
    64: "bad memory could not be set aside",
    74: "NVLink error",
    79: "GPU fell off the bus",
    92: "too many corrected memory errors",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    136: "link training failed",
    140: "unrecovered memory error",
    143: "GPU initialization failed",
    149: "NVLink error",
    154: "the GPU needs a reset or a reboot",
}
_MILD = {
    61: "internal controller warning",
    63: "bad memory is to be set aside at the next reset",
    94: "contained memory error: the program that hit it was ended",
    121: "link error, corrected",
}
# 13, 31, 43, 45, 68, 69 ...: a program's own fault; told only as a number.


@dataclass(frozen=True)
class Xid:
    """One event: bus id of the GPU, code, the rest of the line, and its age in seconds (None: the line has no time)."""

    bus: str
    code: int
    rest: str
    age: float | None


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (LOG,)


def read(value: dict[str, Any]) -> list[Xid]:
    """The events of a host's log, oldest first. A fall off the bus that has no Xid of its own counts as 79."""
    found = []
    for line in value["lines"]:
        match = _XID.search(line)
        fallen = None if match else _FALLEN.search(line)
        if match:
            found.append(Xid(match["bus"], int(match["code"]), (match["rest"] or "").strip(), _age(line, value)))
        elif fallen:
            found.append(Xid(fallen["bus"], 79, "GPU has fallen off the bus", _age(line, value)))
    return found


def _age(line: str, value: dict[str, Any]) -> float | None:
    match = _TIME.match(line)
    return max(0.0, value["uptime"] - float(match["seconds"])) if match else None


def _judge(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(LOG).items():
        if value is None:
            continue  # no NVIDIA device
        if value["source"] is None:
            yield Finding(
                "gpu.xid",
                Severity.INFO,
                "the kernel log is closed to this user, so GPU faults in it cannot be seen",
                host,
                fix=f"ssh {host} sudo sysctl kernel.dmesg_restrict=0, or add the user to the group adm",
            )
        events: dict[tuple[str, int], list[Xid]] = {}
        for xid in read(value):
            events.setdefault((xid.bus, xid.code), []).append(xid)
        for (bus, code), group in events.items():
            yield from _verdict(host, bus, code, group)


def _verdict(host: str, bus: str, code: int, group: list[Xid]) -> Iterable[Finding]:
    last = group[-1]
    fresh = code == 79 or last.age is None or last.age < FRESH_S
    if code in _FATAL:
        severity = Severity.ERROR if fresh else Severity.WARNING
    else:
        severity = Severity.WARNING if code in _MILD and fresh else Severity.INFO
    what = _FATAL.get(code) or _MILD.get(code) or "most often the fault of a program, not of the GPU"
    times = "" if len(group) == 1 else f", {len(group)} times"
    yield Finding(
        "gpu.xid",
        severity,
        f"GPU at PCI {bus}: Xid {code} ({what}){times}, last {_ago(last.age)}"
        + (f": {last.rest[:120]}" if last.rest else ""),
        host,
        fix=f"drain {host} and reboot it; if it comes back, have the GPU replaced"
        if code in _FATAL
        else f"ssh {host} sudo dmesg -T | grep -i xid",
        evidence={"bus": bus, "xid": code, "count": len(group), "age_s": last.age},
    )


def _ago(age: float | None) -> str:
    if age is None:
        return "since the last boot"
    for unit, seconds in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{age:.0f} s ago"


XID = Check(
    "gpu.xid",
    "no GPU faults in the kernel log",
    _ask,
    _judge,
    Doc(
        cause="The driver reported a fault of a GPU since the machine started: it fell off the bus (79), has bad "
        "memory (48, 63, 64, 94, 95), its system processor hangs (119, 120), or NVLink failed (74).",
        symptom="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus; the other ranks hang in a collective",
        fix="Take the node out and reboot it; replace the GPU if the fault comes back.",
        verified=RECORDED,
    ),
)

CHECKS = (XID,)
