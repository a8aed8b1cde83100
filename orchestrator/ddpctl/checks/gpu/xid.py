"""GPU faults in the kernel log: Xid events and similar lines of the NVIDIA driver since the boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import View
from ddpctl.checks.gpu import in_use
from ddpctl.checks.gpu.xid_codes import REBOOT, find_meaning
from ddpctl.checks.limits import FRESH_XID_S, KERNEL_LOG_S, SAME_FALL_S
from ddpctl.spec import nvidia
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by
from ddpctl.spec.nvidia import Gpu, bus_of
from ddpctl.spec.question import Question
from ddpctl.spec.values import plural

LOG = Question("kernel_log", deadline=KERNEL_LOG_S)

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?:,\s*(?P<rest>.*))?")
_FALLEN = re.compile(r"NVRM:.*?GPU(?: at)? (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+).*?fallen off the bus", re.DOTALL)
_NO_START = re.compile(r"NVRM:(?: GPU (?P<bus>[0-9A-Fa-f:.]+):)? RmInitAdapter failed!\s*(?P<rest>.*)")
_SXID = re.compile(
    r"(?P<switch>nvidia-nvswitch\d+): SXid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<code>\d+), (?P<rest>.*\bFatal\b.*)"
)
_RECOVERED = re.compile(r"recovery action changed from .* to 0x0 \(None\)", re.IGNORECASE)
_TIME = re.compile(r"^\[\s*(?P<seconds>\d+\.\d+)\]")

_MEMORY = (48, 63, 64, 92, 94, 95, 140)  # events of the error counters, which a reset sets to 0
_NO_INIT = 0  # RmInitAdapter failed: an event without an Xid


@dataclass(frozen=True)
class Xid:
    """An event: bus id of the GPU, code, the rest of the line, and its age in seconds.

    A line without a time has no age.
    """

    bus: str
    code: int
    rest: str
    age: float | None


def read(value: Mapping[str, Any]) -> list[Xid]:
    """Return the events of GPUs in a host's log, oldest first. A fall off the bus without an Xid counts as 79."""
    found = []
    for line in value["lines"]:
        if match := _XID.search(line):
            code = int(match["code"])
            found.append(Xid(_device(match["bus"]), code, (match["rest"] or "").strip(), _age(line, value)))
        elif fallen := _FALLEN.search(line):
            bus = _device(fallen["bus"])
            age = _age(line, value)
            if not any(_is_same_fall(xid, bus, age) for xid in found):
                found.append(Xid(bus, 79, "GPU has fallen off the bus", age))
        elif dead := _NO_START.search(line):
            found.append(Xid(_device(dead["bus"] or ""), _NO_INIT, dead["rest"], _age(line, value)))
    return found


def _is_same_fall(xid: Xid, bus: str, age: float | None) -> bool:
    """Return whether ``xid`` is the fall of a second line: the driver writes a fall in two lines at the same time."""
    if (xid.bus, xid.code) != (bus, 79):
        return False
    return age is None or xid.age is None or xid.age - age < SAME_FALL_S


def _device(text: str) -> str:
    """Return a PCI address without its function: lines of the driver spell it with and without."""
    return text.rstrip(":").partition(".")[0]


def switch_faults(value: Mapping[str, Any]) -> list[Xid]:
    """Return the fatal errors of NVSwitches. The hardware corrects all other errors."""
    matches = [(line, match) for line in value["lines"] if (match := _SXID.search(line))]
    return [Xid(match["switch"], int(match["code"]), match["rest"], _age(line, value)) for line, match in matches]


def _age(line: str, value: Mapping[str, Any]) -> float | None:
    match = _TIME.match(line)
    return max(0.0, value["uptime"] - float(match["seconds"])) if match else None


def _judge(view: View) -> Iterable[Finding]:
    exempt = _exempt(view)
    for host, value in view.values(LOG).items():
        if value is None or host in exempt:
            continue
        if value["source"] is None:
            yield report.unknown(
                host,
                "not checked: this user may not read the kernel log, and sudo asks for a password",
                fix="the group adm may read the kernel's journal; kernel.dmesg_restrict=0 opens dmesg to everybody "
                "until the next reboot",
                command=report.as_root(view, host, "dmesg -T") + " | grep -iE 'xid|nvrm'",
                evidence={"error": value["error"]},
            )
        events = group_by(lambda xid: (xid.bus, xid.code), read(value))
        for (bus, code), group in events.items():
            yield _verdict(view, host, bus, code, group, _since_reset(events, bus, group))
        yield from _switches(view, host, switch_faults(value))


def _exempt(view: View) -> Mapping[str, str]:
    found = dict(in_use.unused_gpus(view))
    for host, value in view.values(LOG).items():
        if value is None:
            found.setdefault(host, "no NVIDIA GPU on the PCI bus")
        elif (view.value(host, nvidia.KERNEL) or {}).get("container") and value["source"] is None:
            found.setdefault(host, "a container has no kernel log of its own")
    return found


def _since_reset(events: Mapping[tuple[str, int], list[Xid]], bus: str, group: list[Xid]) -> bool:
    """Return whether the driver withdrew its recovery action after the last of the events."""
    asked = events.get((bus, 154), [])
    if not asked or not _RECOVERED.search(asked[-1].rest):
        return False
    done, last = asked[-1].age, group[-1].age
    return group is asked or (done is not None and last is not None and done <= last)


def _verdict(view: View, host: str, bus: str, code: int, group: list[Xid], reset: bool) -> Finding:
    last = group[-1]
    severity, note = _weigh(view, host, bus, code, last, reset)
    meaning = find_meaning(code, last.rest)
    name = (
        f"Xid {code} ({meaning.words})" if code != _NO_INIT else "the driver could not start it (RmInitAdapter failed)"
    )
    times = "" if len(group) == 1 else f", {len(group)} times"
    fatal = severity is Severity.ERROR
    return report.finding(
        severity,
        host,
        f"{f'GPU at PCI {bus}' if bus else 'a GPU'}: {name}{times}, last {_ago(last.age)}"
        + (f": {last.rest[:120]}" if last.rest else "")
        + (f"; {note}" if note else ""),
        fix=(meaning.fix if code != _NO_INIT else REBOOT) if fatal else None,
        command=report.as_root(view, host, "dmesg -T") + " | grep -iE 'xid|nvrm'",
        evidence={"bus": bus, "xid": code, "count": len(group), "age_s": last.age},
    )


def _weigh(view: View, host: str, bus: str, code: int, last: Xid, reset: bool) -> tuple[Severity, str | None]:
    """Return the present severity of an event, and why it is not worse.

    The GPU's present state counts more than its past.
    """
    gpu = _row(view, host, bus)
    used = {row.bus for row in in_use.gpus(view, host)}
    if gpu is not None and gpu.bus not in used:
        return Severity.INFO, "the job does not use this GPU"
    if code == _NO_INIT:
        return (Severity.ERROR, None) if gpu is None else (Severity.INFO, "it answers now")
    fresh = code == 79 or last.age is None or last.age < FRESH_XID_S
    severity = find_meaning(code, last.rest).severity
    if severity is not Severity.ERROR:
        return (severity if fresh and not reset else Severity.INFO), None
    action = gpu.cells.get("gpu_recovery_action") if gpu else None
    if reset or (action == "None" and code in _MEMORY and not _errors(gpu)):
        return Severity.INFO, "the GPU has been reset since"
    if not fresh or (code in _MEMORY and gpu is not None and action is None and _errors(gpu) == 0):
        return Severity.WARNING, None if not fresh else "its error counters are at 0, so it may have been reset since"
    if action == "None":
        return Severity.WARNING, "the driver asks for no reset now"
    return Severity.ERROR, None


def _row(view: View, host: str, bus: str) -> Gpu | None:
    smi = in_use.smis(view).get(host)
    return next((gpu for gpu in (smi.gpus if smi else ()) if bus and gpu.bus == bus_of(bus)), None)


def _errors(gpu: Gpu | None) -> float | None:
    return gpu.number("ecc.errors.uncorrected.volatile.total") if gpu else None


def _switches(view: View, host: str, faults: list[Xid]) -> Iterable[Finding]:
    """Report all switches of a host in a single finding: the fault of a switch shows at many."""
    if not faults or len(in_use.gpus(view, host)) == 1:
        return  # a single GPU uses no switch
    last = faults[-1]
    codes = ", ".join(dict.fromkeys(str(fault.code) for fault in faults))
    fresh = last.age is None or last.age < FRESH_XID_S
    yield report.finding(
        Severity.ERROR if fresh else Severity.WARNING,
        host,
        f"{plural(len(faults), 'fatal NVSwitch error')} (SXid {codes}), last {_ago(last.age)}: "
        f"{last.bus}: {last.rest[:120]}",
        fix="drain the host and reboot it: GPUs behind that switch hang; if it comes back, the baseboard is at fault",
        command=report.as_root(view, host, "dmesg -T") + " | grep -i sxid",
        evidence={"codes": codes, "count": len(faults), "age_s": last.age},
    )


def _ago(age: float | None) -> str:
    if age is None:
        return "since the last boot"
    for unit, seconds in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{age:.0f} s ago"


CHECKS = (
    in_use.gpu_check(
        "gpu.xid",
        "no GPU faults in the kernel log",
        _judge,
        ask=(LOG, *nvidia.ASK),
        cause="The driver reported a fault of a GPU since the machine started: it fell off the bus (79), has bad "
        "memory (48, 63, 64, 94, 95), its system processor hangs (119, 120), NVLink failed (74), an NVSwitch did "
        "(SXid), or the driver could not start it (RmInitAdapter). A fault that a reset has cleared is only an info.",
        symptom="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus; the other ranks hang in a collective",
        fix="Drain the node and reset the GPU or reboot, as the finding says. Replace the GPU only if NVIDIA's "
        "diagnostics find a fault.",
        exempt=_exempt,
    ),
)
