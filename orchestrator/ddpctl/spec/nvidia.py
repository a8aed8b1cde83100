"""NVIDIA: nvidia-smi's text, which differs by driver and generation, as values; and which driver runs which CUDA."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.spec.fold import one_line
from ddpctl.spec.limits import SMI_MESSAGE_LETTERS, SMI_S
from ddpctl.spec.question import Answer, Question

SMI = Question("nvidia_smi", deadline=SMI_S)
KERNEL = Question("nvidia_kernel")
ASK = (SMI, KERNEL)

# How nvidia-smi can fail, by what it prints.
OK = "ok"
ABSENT = "absent"  # not installed
HUNG = "hung"
MISMATCH = "mismatch"  # the library was upgraded, the loaded module was not
NO_DRIVER = "no_driver"
NO_DEVICES = "no_devices"
LOST = "lost"  # a GPU does not answer any more
FAILED = "failed"
NO_GPU = (ABSENT, NO_DRIVER, NO_DEVICES)  # nothing for torch to use, as far as nvidia-smi knows

_FAILURES = (
    (re.compile(r"Driver/library version mismatch", re.IGNORECASE), MISMATCH),
    (re.compile(r"couldn't communicate with the NVIDIA driver|driver is not loaded", re.IGNORECASE), NO_DRIVER),
    (re.compile(r"No devices were found", re.IGNORECASE), NO_DEVICES),
    (re.compile(r"Unable to determine the device handle|GPU is lost|fallen off the bus", re.IGNORECASE), LOST),
)
_NOTHING = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Requested functionality has been deprecated|)\]?")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_MIG_DEVICE = re.compile(r"^\s+MIG\s.*Device\s+\d+:", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """One row of ``--query-gpu``: the cells by column name (units off, names as new drivers spell them)."""

    cells: Mapping[str, str | None]

    @property
    def index(self) -> str:
        return self.cells.get("index") or "?"

    @property
    def name(self) -> str | None:
        return self.cells.get("name")

    @property
    def bus(self) -> str:
        """``0000:3b:00``, as ``bus_of`` spells it."""
        return bus_of(self.cells.get("pci.bus_id") or "")

    def number(self, column: str) -> float | None:
        """The cell as a number, whatever unit follows it."""
        match = re.match(r"-?\d+(\.\d+)?", self.cells.get(column) or "")
        return float(match.group()) if match else None

    def is_on(self, column: str) -> bool:
        """Active, Enabled, Yes, or a number above 0."""
        cell = (self.cells.get(column) or "").lower()
        return cell in ("active", "enabled", "yes") or (self.number(column) or 0) > 0


@dataclass(frozen=True)
class App:
    """A compute process on a GPU; ``user`` None: a process that this node cannot see (another container's)."""

    uuid: str
    pid: int
    name: str
    memory: str | None
    user: str | None = None
    command: str | None = None
    job: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class Smi:
    """All that nvidia-smi said on one host. ``text`` is its complaint where ``state`` is not OK."""

    state: str
    text: str = ""
    gpus: tuple[Gpu, ...] = ()
    program: str = "nvidia-smi"  # as it is called there: in WSL2 it is in no PATH
    apps: tuple[App, ...] = ()
    remapped: tuple[Mapping[str, str | None], ...] = ()
    mig_devices: int = 0
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Devices that a process can have: whole GPUs, or one MIG device, however many there are."""
        whole = [gpu for gpu in self.gpus if not gpu.is_on("mig.mode.current")]
        return len(whole) or min(1, self.mig_devices)

    @property
    def driver(self) -> str | None:
        return next((gpu.cells.get("driver_version") for gpu in self.gpus), None)


def bus_of(text: str) -> str:
    """One spelling of a PCI address: nvidia-smi's domain has eight digits, the kernel log tells no function."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def labels(gpus: Iterable[Gpu]) -> str:
    """``GPU 3 (00000000:3B:00.0)``; of several ``GPUs 0-3, 6``."""
    many = tuple(gpus)
    if len(many) == 1:
        bus = many[0].cells.get("pci.bus_id")
        return f"GPU {many[0].index} ({bus})" if bus else f"GPU {many[0].index}"
    numbers = sorted(int(gpu.index) if gpu.index.isdigit() else -1 for gpu in many)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "GPUs " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read(answer: Answer) -> Smi:
    """The worker's ``nvidia_smi`` answer as a value."""
    if not answer.ok:
        return Smi(HUNG if answer.timed_out else FAILED, answer.error or "", seconds=answer.seconds)
    if answer.value is None:
        return Smi(ABSENT)
    value = answer.value
    first = value["gpu"]
    if first["timed_out"]:
        return Smi(HUNG, f"no answer within {first['seconds']:.0f} s", seconds=first["seconds"], evidence=value)
    text = (first["stdout"] + first["stderr"]).strip()
    failed = failure(text)
    if first["code"] != 0 or failed:
        return Smi(failed or FAILED, one_line(text)[:SMI_MESSAGE_LETTERS], seconds=first["seconds"], evidence=value)
    return Smi(
        OK,
        gpus=tuple(Gpu(row) for row in table(first["stdout"])),
        program=_program(value.get("program")),
        apps=_apps(value),
        remapped=tuple(table(_text(value, "remapped"))),
        mig_devices=len(_MIG_DEVICE.findall(_text(value, "list"))),
        seconds=first["seconds"],
        evidence={"gpu": first["stdout"]},
    )


def _program(path: str | None) -> str:
    usual = path is None or path.startswith(("/usr/bin/", "/bin/", "/usr/sbin/"))
    return "nvidia-smi" if usual else str(path)


def failure(text: str) -> str | None:
    """Which known complaint the text is, if any."""
    return next((state for pattern, state in _FAILURES if pattern.search(text)), None)


def table(text: str) -> list[dict[str, str | None]]:
    """A CSV table with a header. Cells that say that there is nothing to say are None."""
    header, *rows = _rows(text) or [[]]
    names = [column(name) for name in header]
    return [dict(zip(names, map(cell, row), strict=False)) for row in rows]


def _rows(text: str) -> list[list[str]]:
    return [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]


def column(name: str) -> str:
    """A column's name without its unit, as drivers since 535 spell it."""
    plain = _UNIT.sub("", name.strip())
    return plain.replace("clocks_throttle_reasons.", "clocks_event_reasons.")


def cell(text: str) -> str | None:
    stripped = text.strip()
    return None if _NOTHING.fullmatch(stripped) else stripped


def _text(value: Mapping[str, Any], key: str) -> str:
    result = value.get(key)
    return result["stdout"] if result and result["code"] == 0 else ""


def _apps(value: Mapping[str, Any]) -> tuple[App, ...]:
    known = {one["pid"]: one for one in value.get("processes", ())}
    found = []
    for row in _rows(_text(value, "apps")):
        if len(row) >= 4 and row[1].strip().isdigit():
            pid = int(row[1])
            who = known.get(pid) or {}
            owner = (who.get(key) for key in ("user", "command", "job", "run"))
            found.append(App(row[0], pid, row[2], cell(row[3]), *owner))
    return tuple(found)


# --- drivers ---------------------------------------------------------------------------------------------------------

# The oldest driver that runs programs built with a CUDA release. NVIDIA's CUDA compatibility guide, "minor version
# compatibility": a driver of the first release of a major version runs every later build of that version.
_LEAST_DRIVER = {
    "13": "580.0",
    "12": "525.60.13",
    "11": "450.80.02",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
    "9.2": "396.26",
    "9.0": "384.81",
}


def least_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA release (``12.6``); None: not in the table."""
    return _LEAST_DRIVER.get(cuda.split(".")[0]) or _LEAST_DRIVER.get(".".join(cuda.split(".")[:2]))


def older(driver: str, least: str) -> bool:
    """Whether a driver's version is below another, number by number."""
    return numbers(driver) < numbers(least)


def numbers(version: str) -> tuple[int, ...]:
    """``525.60.13`` as numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
