"""NVIDIA GPUs: what the kernel says (files only, never hangs) and what nvidia-smi says (may hang for ever).

nvidia-smi's text is handed on raw: it differs by driver, and the orchestrator reads it (and is tested on recordings).
"""

from __future__ import annotations

import glob
import os
import re
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import command, read_text
from ddpctl_worker.facts.port import command_line
from ddpctl_worker.facts.processes import owner, variable

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
_BRIDGE = "0x0680"  # an NVSwitch
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_peermem", "nv_peer_mem", "nouveau")
WSL_CUDA = "/usr/lib/wsl/lib/libcuda.so.1"
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_MOST_BAD_FIELDS = 12
_OLD_REASONS = "clocks_throttle_reasons."
_NEW_REASONS = "clocks_event_reasons."

# Old drivers do not know the later ones; the worker leaves out what nvidia-smi refuses.
FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "compute_mode",
    "persistence_mode",
    "mig.mode.current",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "compute_cap",
    "gpu_recovery_action",
    "fabric.state",
)
APPS = "gpu_uuid,pid,process_name,used_memory"
REMAPPED = "gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"


def nvidia_kernel(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """PCI devices by kind, loaded modules, the driver's own version text, device nodes, the distribution's names."""
    devices = pci_devices()
    loaded = {line.split(" ", 1)[0] for line in read_text("/proc/modules").splitlines()}
    return {
        "gpus": [slot for slot, kind in devices if kind.startswith(_DISPLAY)],
        "switches": [slot for slot, kind in devices if kind.startswith(_BRIDGE)],
        "modules": [name for name in _MODULES if name in loaded],
        "version": read_text("/proc/driver/nvidia/version"),
        "driver_gpus": sorted(os.path.basename(path) for path in glob.glob("/proc/driver/nvidia/gpus/*")),
        "nodes": sorted(path for path in glob.glob("/dev/nvidia*") if re.search(r"/nvidia\d+$", path)),
        "minors": minors(),
        "wsl": os.path.exists("/dev/dxg"),
        "distribution": distribution(),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def minors(root: str = "/proc/driver/nvidia/gpus") -> Dict[str, int]:
    """PCI address -> N of /dev/nvidiaN, which is not nvidia-smi's number."""
    found = {}
    for path in glob.glob(root + "/*/information"):
        match = re.search(r"^Device Minor:\s*(\d+)", read_text(path), re.MULTILINE)
        if match:
            found[os.path.basename(os.path.dirname(path))] = int(match.group(1))
    return found


def distribution() -> List[str]:
    """``ID`` and ``ID_LIKE`` of os-release: ``["ubuntu", "debian"]``."""
    found = []
    for line in read_text("/etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name in ("ID", "ID_LIKE"):
            found += value.strip("\"'").split()
    return found


def devices() -> int:
    """GPUs by their device nodes; WSL2 has one node for all, and CUDA's library where the GPU is NVIDIA's."""
    nodes = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    return nodes or int(os.path.exists("/dev/dxg") and os.path.exists(WSL_CUDA))


def pci_devices() -> "List[tuple[str, str]]":
    """(slot, class) of NVIDIA's PCI devices."""
    found = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if read_text(folder + "/vendor").strip() == _VENDOR:
            found.append((os.path.basename(folder), read_text(folder + "/class").strip()))
    return found


def nvidia_smi(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """nvidia-smi's answers, each with ``code``, ``stdout``, ``stderr`` and ``timed_out``; None: not installed.

    ``gpu`` is a CSV table with a header, ``apps`` the processes on the GPUs, ``remapped`` the row remapping of newer
    generations, ``list`` the output of ``-L`` where MIG is on. The later ones are only asked when the first worked.
    """
    if command.find("nvidia-smi") is None:
        return None
    until = time.monotonic() + context["deadline"] - 1.0
    found: Dict[str, Any] = {"gpu": _query_gpu(until), "apps": None, "remapped": None, "list": None, "processes": []}
    found["program"] = command.find("nvidia-smi")
    if found["gpu"]["code"] != 0:
        return found
    found["apps"] = _smi(["--query-compute-apps=" + APPS, "--format=csv,noheader"], until)
    found["remapped"] = _smi(["--query-remapped-rows=" + REMAPPED, "--format=csv"], until)
    if re.search(r"\bEnabled\b", _column(found["gpu"]["stdout"], "mig.mode.current")):
        found["list"] = _smi(["-L"], until)
    found["processes"] = [describe(pid) for pid in _pids(found["apps"]["stdout"])]
    return found


def _smi(arguments: List[str], until: float) -> Dict[str, Any]:
    return command.run(["nvidia-smi", *arguments], timeout=max(0.5, until - time.monotonic()))


def _query_gpu(until: float) -> Dict[str, Any]:
    """The table, without the fields that this driver does not know."""
    fields = list(FIELDS)
    for _ in range(_MOST_BAD_FIELDS):
        result = _smi(["--query-gpu=" + ",".join(fields), "--format=csv"], until)
        bad = _BAD_FIELD.search(result["stdout"] + result["stderr"])
        if not bad or bad.group(1) not in fields:
            break
        if bad.group(1).startswith(_OLD_REASONS):  # a driver that knows the new name alone
            fields = [field.replace(_OLD_REASONS, _NEW_REASONS) for field in fields]
        else:
            fields.remove(bad.group(1))
    return result


def _column(text: str, name: str) -> str:
    """All cells of one column, in one string."""
    lines = text.splitlines()
    header = [cell.strip().split(" ")[0] for cell in lines[0].split(",")] if lines else []
    if name not in header:
        return ""
    at = header.index(name)
    rows = [line.split(",") for line in lines[1:]]
    return " ".join(row[at] for row in rows if len(row) > at)


def _pids(text: str) -> List[int]:
    found = []
    for line in text.splitlines():
        cells = line.split(",")
        if len(cells) > 1 and cells[1].strip().isdigit():
            found.append(int(cells[1]))
    return found


def describe(pid: int) -> Dict[str, Any]:
    """Who a process on a GPU is, as far as we may see; in a container the numbers are the host's and mean nothing."""
    return {
        "pid": pid,
        "user": owner(pid),
        "command": command_line(str(pid)) if owner(pid) else None,
        "job": variable(pid, "DDPCTL_JOB"),
    }


def fabric_manager(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The NVSwitch fabric manager: systemctl's word and its version; None on a machine without NVSwitches."""
    if not any(kind.startswith(_BRIDGE) for _, kind in pci_devices()):
        return None
    timeout = max(0.5, (context["deadline"] - 1.0) / 2)
    return {
        "active": command.tool(["systemctl", "is-active", "nvidia-fabricmanager"], timeout),
        "version": command.tool(["nv-fabricmanager", "--version"], timeout),
    }
