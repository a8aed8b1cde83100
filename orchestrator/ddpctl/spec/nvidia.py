"""Parses the output of nvidia-smi, which differs by driver and GPU, and knows the oldest driver for each CUDA."""

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

# The states of nvidia-smi, by its output.
OK = "ok"
ABSENT = "absent"  # not installed
HUNG = "hung"
MISMATCH = "mismatch"  # the library was upgraded, the loaded kernel module was not
NO_DRIVER = "no_driver"
NO_DEVICES = "no_devices"
LOST = "lost"  # a GPU no longer answers
FAILED = "failed"
NO_GPU = (ABSENT, NO_DRIVER, NO_DEVICES)  # torch finds no GPU, according to nvidia-smi

_FAILURES = (
    (re.compile(r"Driver/library version mismatch", re.IGNORECASE), MISMATCH),
    (re.compile(r"couldn't communicate with the NVIDIA driver|driver is not loaded", re.IGNORECASE), NO_DRIVER),
    (re.compile(r"No devices were found", re.IGNORECASE), NO_DEVICES),
    (re.compile(r"Unable to determine the device handle|GPU is lost|fallen off the bus", re.IGNORECASE), LOST),
)
_NOTHING = re.compile(r"\[?(N/A|Not Supported|Requested functionality has been deprecated|)\]?")
_FAULT = re.compile(r"\[[A-Za-z].*\]")  # a cell such as [GPU requires reset]
_BAD_INFOROM = 14  # the exit code of nvidia-smi whose table is whole: a GPU's information memory is corrupted
_WARNING = "WARNING: "
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_MIG_DEVICE = re.compile(r"^\s+MIG\s.*Device\s+\d+:", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A row of ``--query-gpu``: column -> cell. Columns have no unit, and are spelled as by new drivers.

    ``fault``: what the driver says in place of a value, such as ``GPU requires reset``.
    """

    cells: Mapping[str, str | None]
    fault: str | None = None

    @property
    def index(self) -> str:
        return self.cells.get("index") or "?"

    @property
    def name(self) -> str | None:
        return self.cells.get("name")

    @property
    def bus(self) -> str:
        """Return the PCI address as ``bus_of`` spells it: ``0000:3b:00``."""
        return bus_of(self.cells.get("pci.bus_id") or "")

    def number(self, column: str) -> float | None:
        """Return the cell as a number, without its unit."""
        match = re.match(r"-?\d+(\.\d+)?", self.cells.get(column) or "")
        return float(match.group()) if match else None

    def is_on(self, column: str) -> bool:
        """Return whether the cell is Active, Enabled, Yes, or a number above 0."""
        cell = (self.cells.get(column) or "").lower()
        return cell in ("active", "enabled", "yes") or (self.number(column) or 0) > 0


@dataclass(frozen=True)
class App:
    """A compute process on a GPU. ``user`` is None if the node cannot see the process (it is in another container)."""

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
    """The output of nvidia-smi on a host. ``text``: its error message if ``state`` is not OK."""

    state: str
    text: str = ""
    gpus: tuple[Gpu, ...] = ()
    program: str = "nvidia-smi"  # its name or path: in WSL2 it is not in PATH
    apps: tuple[App, ...] = ()
    remapped: tuple[Mapping[str, str | None], ...] = ()
    mig_devices: int = 0
    warnings: tuple[str, ...] = ()  # lines about a GPU beside the table
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of devices for processes: all whole GPUs; without any, a single MIG device."""
        whole = [gpu for gpu in self.gpus if not gpu.is_on("mig.mode.current")]
        return len(whole) or min(1, self.mig_devices)

    @property
    def driver(self) -> str | None:
        return next((gpu.cells.get("driver_version") for gpu in self.gpus), None)


def bus_of(text: str) -> str:
    """Return a PCI address in a common spelling: nvidia-smi's domain has 8 digits, the kernel log has no function."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def labels(gpus: Iterable[Gpu]) -> str:
    """Return the GPUs as text: ``GPU 3 (00000000:3B:00.0)``, or ``GPUs 0-3, 6``."""
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
    """Parse a host's answer to the question ``nvidia_smi``."""
    if not answer.ok:
        return Smi(HUNG if answer.timed_out else FAILED, answer.error or "", seconds=answer.seconds)
    if answer.value is None:
        return Smi(ABSENT)
    value = answer.value
    first = value["gpu"]
    if first["timed_out"]:
        return Smi(HUNG, f"no answer within {first['seconds']:.0f} s", seconds=first["seconds"], evidence=value)
    text = (first["stdout"] + first["stderr"]).strip()
    failed = find_failure(text)
    if first["code"] not in (0, _BAD_INFOROM) or failed:
        return Smi(failed or FAILED, one_line(text)[:SMI_MESSAGE_LETTERS], seconds=first["seconds"], evidence=value)
    return Smi(
        OK,
        gpus=tuple(_gpu_of(row) for row in _named_rows(_without_warnings(first["stdout"]))),
        warnings=tuple(line for line in text.splitlines() if line.startswith(_WARNING)),
        program=_program(value.get("program")),
        apps=_apps(value),
        remapped=tuple(table(_text(value, "remapped"))),
        mig_devices=len(_MIG_DEVICE.findall(_text(value, "list"))),
        seconds=first["seconds"],
        evidence={"gpu": first["stdout"]},
    )


def _without_warnings(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(_WARNING))


def _program(path: str | None) -> str:
    usual = path is None or path.startswith(("/usr/bin/", "/bin/", "/usr/sbin/"))
    return "nvidia-smi" if usual else str(path)


def find_failure(text: str) -> str | None:
    """Return the state that the error message means; ``None``: an unknown message, or no error."""
    return next((state for pattern, state in _FAILURES if pattern.search(text)), None)


def _gpu_of(row: Mapping[str, str]) -> Gpu:
    fault = next((text[1:-1] for text in row.values() if _is_fault(text)), None)
    return Gpu({name: cell(text) for name, text in row.items()}, fault)


def table(text: str) -> list[dict[str, str | None]]:
    """Parse a CSV table with a header: rows of column -> cell, with ``None`` for cells such as ``N/A``."""
    return [{name: cell(value) for name, value in row.items()} for row in _named_rows(text)]


def _named_rows(text: str) -> list[dict[str, str]]:
    header, *rows = _rows(text) or [[]]
    names = [column(name) for name in header]
    return [dict(zip(names, map(str.strip, row), strict=False)) for row in rows]


def _rows(text: str) -> list[list[str]]:
    return [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]


def column(name: str) -> str:
    """Return the name of a column without its unit, spelled as by drivers since 535."""
    plain = _UNIT.sub("", name.strip())
    return plain.replace("clocks_throttle_reasons.", "clocks_event_reasons.")


def cell(text: str) -> str | None:
    """Return a cell's value, or ``None``: the driver knows none, or the GPU is at fault."""
    stripped = text.strip()
    return None if _NOTHING.fullmatch(stripped) or _is_fault(stripped) else stripped


def _is_fault(text: str) -> bool:
    return bool(_FAULT.fullmatch(text)) and not _NOTHING.fullmatch(text)


def _text(value: Mapping[str, Any], key: str) -> str:
    result = value.get(key)
    return result["stdout"] if result and result["code"] == 0 else ""


def _apps(value: Mapping[str, Any]) -> tuple[App, ...]:
    processes = {process["pid"]: process for process in value.get("processes", ())}
    found = []
    for row in _rows(_text(value, "apps")):
        if len(row) >= 4 and row[1].strip().isdigit():
            pid = int(row[1])
            process = processes.get(pid) or {}
            owner = (process.get(key) for key in ("user", "command", "job", "run"))
            found.append(App(row[0], pid, row[2], cell(row[3]), *owner))
    return tuple(found)


# --- drivers ---------------------------------------------------------------------------------------------------------

# CUDA release -> the oldest driver that runs programs built with it. Source: NVIDIA's CUDA compatibility guide, "minor
# version compatibility": the driver of the first release of a major version runs every later build of that version.
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
    """Return the oldest driver for a CUDA release (``12.6``); ``None``: the release is not in the table."""
    return _LEAST_DRIVER.get(cuda.split(".")[0]) or _LEAST_DRIVER.get(".".join(cuda.split(".")[:2]))


def is_older(driver: str, least: str) -> bool:
    """Return whether version ``driver`` is below version ``least``, compared number by number."""
    return numbers(driver) < numbers(least)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``525.60.13``."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
