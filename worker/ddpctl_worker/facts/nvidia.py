"""NVIDIA GPUs, from the kernel's files (which never hang) and from nvidia-smi (which may hang forever).

The text of nvidia-smi is passed on as it is, because it differs by driver. The orchestrator reads it, and is tested on
recordings.
"""

from __future__ import annotations

import glob
import os
import re
import struct
import time
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.facts import program_seconds
from ddpctl_worker.facts.limits import COMMAND_LETTERS, KERNEL_LINES, LEAST_SMI_S, PROGRAM_MARGIN_S, UNKNOWN_FIELDS
from ddpctl_worker.facts.processes import owner
from ddpctl_worker.machine import proc, tool
from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.wire.contract import ENV_JOB, ENV_RUN

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
_BRIDGE = "0x0680"  # an NVSwitch
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_peermem", "nv_peer_mem", "nouveau")
WSL_CUDA = "/usr/lib/wsl/lib/libcuda.so.1"
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_OLD_REASONS = "clocks_throttle_reasons."
_NEW_REASONS = "clocks_event_reasons."

# Old drivers do not know all fields. ``_query_gpu`` leaves out the fields that nvidia-smi refuses.
FIELDS = (
    "index,uuid,name,driver_version,pci.bus_id,memory.total,memory.used,utilization.gpu,temperature.gpu,compute_mode,"
    "persistence_mode,mig.mode.current,ecc.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending,"
    "clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.hw_thermal_slowdown,"
    "clocks_throttle_reasons.hw_power_brake_slowdown,clocks_throttle_reasons.sw_thermal_slowdown,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "compute_cap,gpu_recovery_action,fabric.state"
)
APPS = "gpu_uuid,pid,process_name,used_memory"
REMAPPED = "gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
_EXTENDED = 0x100
_ACS = 0x000D
_INTERESTING = re.compile(r"NVRM: .*Xid|fallen off the bus|RmInitAdapter failed|nvidia-nvswitch\d*: SXid.*\bFatal")
_Log = Tuple[Optional[List[str]], Optional[str], Optional[str]]  # lines, their source, and why there are no lines


def nvidia_kernel(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return PCI devices by kind, loaded modules, the driver's version text, device nodes, the distribution."""
    devices = pci_devices()
    loaded = {line.split(" ", 1)[0] for line in read_text("/proc/modules").splitlines()}
    return {
        "gpus": [slot for slot, kind in devices if kind.startswith(_DISPLAY)],
        "switches": [slot for slot, kind in devices if kind.startswith(_BRIDGE)],
        "modules": [name for name in _MODULES if name in loaded],
        "version": read_text("/proc/driver/nvidia/version"),
        "driver_gpus": sorted(os.path.basename(path) for path in glob.glob("/proc/driver/nvidia/gpus/*")),
        "nodes": sorted(path for path in glob.glob("/dev/nvidia*") if re.search(r"/nvidia\d+$", path)),
        "minors": minor_numbers(),
        "wsl": os.path.exists("/dev/dxg"),
        "distribution": distribution(),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def minor_numbers(root: str = "/proc/driver/nvidia/gpus") -> Dict[str, int]:
    """Return N of /dev/nvidiaN by PCI address. N is not nvidia-smi's number."""
    found = {}
    for path in glob.glob(root + "/*/information"):
        match = re.search(r"^Device Minor:\s*(\d+)", read_text(path), re.MULTILINE)
        if match:
            found[os.path.basename(os.path.dirname(path))] = int(match.group(1))
    return found


def distribution() -> List[str]:
    """Return ``ID`` and ``ID_LIKE`` of os-release, such as ``["ubuntu", "debian"]``."""
    found = []
    for line in read_text("/etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name in ("ID", "ID_LIKE"):
            found += value.strip("\"'").split()
    return found


def devices() -> int:
    """Return the number of GPUs by device nodes; WSL2 has a single node, and CUDA's library if the GPU is NVIDIA's."""
    nodes = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    return nodes or int(os.path.exists("/dev/dxg") and os.path.exists(WSL_CUDA))


def pci_devices() -> List[Tuple[str, str]]:
    """Return (slot, class) of NVIDIA's PCI devices."""
    found = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if read_text(folder + "/vendor").strip() == _VENDOR:
            found.append((os.path.basename(folder), read_text(folder + "/class").strip()))
    return found


def nvidia_smi(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return nvidia-smi's answers, each with ``code``, ``stdout``, ``stderr`` and ``timed_out``.

        gpu        a CSV table with a header
        apps       the processes on the GPUs
        remapped   the row remapping of newer generations
        list       the output of ``-L``, if MIG is on

    ``None`` if nvidia-smi is not installed. If ``gpu`` fails, the other answers are not asked for.
    """
    if tool.find("nvidia-smi") is None:
        return None
    until = time.monotonic() + context["deadline"] - PROGRAM_MARGIN_S
    found: Dict[str, Any] = {"gpu": _query_gpu(until), "apps": None, "remapped": None, "list": None, "processes": []}
    found["program"] = tool.find("nvidia-smi")
    if found["gpu"]["code"] != 0:
        return found
    found["apps"] = _smi(["--query-compute-apps=" + APPS, "--format=csv,noheader"], until)
    found["remapped"] = _smi(["--query-remapped-rows=" + REMAPPED, "--format=csv"], until)
    if re.search(r"\bEnabled\b", _column(found["gpu"]["stdout"], "mig.mode.current")):
        found["list"] = _smi(["-L"], until)
    found["processes"] = [describe_process(pid) for pid in _pids(found["apps"]["stdout"])]
    return found


def _smi(arguments: List[str], until: float) -> Dict[str, Any]:
    return tool.run(["nvidia-smi", *arguments], timeout=max(LEAST_SMI_S, until - time.monotonic()))


def _query_gpu(until: float) -> Dict[str, Any]:
    """Return the table, without the fields that this driver does not know."""
    fields = FIELDS.split(",")
    for _ in range(UNKNOWN_FIELDS):
        result = _smi(["--query-gpu=" + ",".join(fields), "--format=csv"], until)
        bad = _BAD_FIELD.search(result["stdout"] + result["stderr"])
        if not bad or bad.group(1) not in fields:
            break
        if bad.group(1).startswith(_OLD_REASONS):  # a driver that knows the new names only
            fields = [field.replace(_OLD_REASONS, _NEW_REASONS) for field in fields]
        else:
            fields.remove(bad.group(1))
    return result


def _column(text: str, name: str) -> str:
    """Return all cells of a column, joined to a string."""
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


def describe_process(pid: int) -> Dict[str, Any]:
    """Describe a process on a GPU, as far as this user may see. In a container the pids are the host's."""
    marks = proc.variables(pid)
    return {
        "pid": pid,
        "user": owner(pid),
        "command": proc.command_line(pid, COMMAND_LETTERS) if owner(pid) else None,
        "job": marks.get(ENV_JOB),
        "run": marks.get(ENV_RUN),
    }


def fabric_manager(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return state and version of the NVSwitch fabric manager, or ``None`` on a machine without NVSwitches."""
    if not any(kind.startswith(_BRIDGE) for _, kind in pci_devices()):
        return None
    timeout = max(LEAST_SMI_S, (context["deadline"] - PROGRAM_MARGIN_S) / 2)
    return {
        "active": tool.run_if_installed(["systemctl", "is-active", "nvidia-fabricmanager"], timeout),
        "version": tool.run_if_installed(["nv-fabricmanager", "--version"], timeout),
    }


def gpu_paths(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the path of each NVIDIA GPU to the PCI root.

    ``gpus``: slot -> the bridges above it and the type of its IOMMU group (``DMA``, ``DMA-FQ``, ``identity``; ``None``
    without an IOMMU). ``acs``: bridge -> its ACS control word; ``None`` if only root may read it.
    """
    slots = [slot for slot, kind in pci_devices() if kind.startswith(_DISPLAY)]
    above = {slot: bridges(slot) for slot in slots}
    return {
        "virtual": " hypervisor" in read_text("/proc/cpuinfo", limit=16384),
        "gpus": {slot: {"iommu": iommu(slot), "bridges": above[slot]} for slot in slots},
        "acs": {
            bridge: acs_control(_config(bridge)) for bridge in sorted({b for path in above.values() for b in path})
        },
    }


def iommu(slot: str) -> Optional[str]:
    return read_text("/sys/bus/pci/devices/%s/iommu_group/type" % slot).strip() or None


def bridges(slot: str) -> List[str]:
    """Return the PCI bridges from the root to a device."""
    path = os.path.realpath("/sys/bus/pci/devices/" + slot)
    return [part for part in path.split("/")[:-1] if os.path.exists("/sys/bus/pci/devices/" + part)]


def _config(slot: str) -> bytes:
    try:
        with open("/sys/bus/pci/devices/%s/config" % slot, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def acs_control(config: bytes) -> Optional[int]:
    """Return the control word of the ACS capability, 0 without it, or ``None`` if that part cannot be read."""
    if len(config) < _EXTENDED:
        return None
    at, seen = _EXTENDED, 0
    while _EXTENDED <= at <= len(config) - 8 and seen < 64:
        (head,) = struct.unpack_from("<I", config, at)
        if head & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, at + 6)
            return int(control)
        at, seen = (head >> 20) & 0xFFC, seen + 1
    return 0


def kernel_log(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the last lines about GPU faults as ``[seconds since boot] text``, their source, and the uptime.

    ``None`` on a machine without an NVIDIA GPU. ``source`` is ``None`` and ``error`` has the reason if this user may
    not read the log (kernel.dmesg_restrict) and has no sudo without a password.
    """
    if not pci_devices():
        return None
    timeout = program_seconds(context)
    lines, source, error = _from_device()
    programs = [["dmesg"], ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"]]
    if os.getuid() != 0:
        programs.append(["sudo", "-n", "dmesg"])  # only reads, and never asks for a password
    for argv in programs:
        if lines is None:
            lines, source, error = _from_program(argv, timeout, error)
    matching = [line for line in lines or [] if _INTERESTING.search(line)]
    return {
        "source": source,
        "lines": matching[-KERNEL_LINES:],
        "total": len(matching),
        "error": error if lines is None else None,
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
    }


def _from_device() -> _Log:
    """Read /dev/kmsg, a record in each read: ``priority,sequence,microseconds,flags;text``."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return None, None, str(error)
    lines: List[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode("utf-8", "replace")
            except BlockingIOError:  # the end
                return lines, "/dev/kmsg", None
            except BrokenPipeError:  # overwritten during the read: continue with the next record
                continue
            head, _, text = record.partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[2].isdigit():
                said = text.split("\n", 1)[0].replace("\\x0a", " ")  # a message of several lines is one record
                lines.append("[%12.6f] %s" % (int(fields[2]) / 1e6, said))
    except OSError as error:
        return None, None, str(error)
    finally:
        os.close(handle)


def _from_program(argv: List[str], timeout: float, before: Optional[str]) -> _Log:
    result = tool.run_if_installed(argv, timeout)
    if result is None:
        return None, None, before
    lines = join_lines(result["stdout"])
    if result["code"] != 0 or not lines:  # without the right to read, journalctl prints nothing and no error
        return None, None, result["stderr"].strip() or before
    return lines, argv[0], None


def join_lines(text: str) -> List[str]:
    """Return dmesg's lines, with indented continuations joined to their line, as old drivers print them."""
    lines: List[str] = []
    for line in text.splitlines():
        if lines and line[:1].isspace():
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines
