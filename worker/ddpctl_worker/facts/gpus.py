"""Reads the GPUs of this node and their processes: from NVML, else from nvidia-smi, else from amdgpu's files."""

from __future__ import annotations

import glob
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpctl_worker.facts import amd
from ddpctl_worker.facts.gpu import number, rows
from ddpctl_worker.facts.limits import GPU_COMMAND_LETTERS, KNOWN_PROCESSES, NVIDIA_SMI_S
from ddpctl_worker.facts.nvml import SLOWED, Nvml, NvmlError
from ddpctl_worker.facts.processes import owner
from ddpctl_worker.machine import proc, tool
from ddpctl_worker.machine.fs import read_number, read_text
from ddpctl_worker.wire.contract import ENV_JOB, ENV_RUN

_FIELDS = (
    "uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,power.limit,"
    "clocks_throttle_reasons.active"
)
_FORM = "--format=csv,noheader,nounits"
_MB = 1 << 20

Seen = List[Dict[str, Any]]


class Gpus:
    """The GPUs of this node. The first reading finds the source."""

    def __init__(self, sys: str = "/sys") -> None:
        self._sys = sys
        self._source: Optional[Callable[[], Seen]] = None
        self._known: Dict[Tuple[int, int], Dict[str, Any]] = {}  # pid and start time -> description

    def read(self) -> Dict[str, Any]:
        """Return ``gpus``, each with its ``holders``, or an ``error``."""
        try:
            self._source = self._source or self._find()
            found = self._source()
        except (OSError, ValueError, NvmlError) as error:
            self._source = None
            return {"gpus": [], "error": str(error)}
        for index, gpu in enumerate(found):
            pids = gpu.pop("pids")
            gpu.update(index=index, holders=[dict(self._who(pid), memory=pids[pid]) for pid in sorted(pids)])
        return {"gpus": found, "error": None}

    def _find(self) -> Callable[[], Seen]:
        try:
            return Nvml().read
        except (OSError, AttributeError, NvmlError):  # no library, a very old library, or no driver
            pass
        if os.path.exists("/dev/nvidiactl") and tool.find("nvidia-smi"):
            return by_tool
        return lambda: by_files(self._sys)

    def _who(self, pid: int) -> Dict[str, Any]:
        """Describe a process on a GPU. In a container the pids are the host's, and mean nothing here."""
        stat = proc.read_stat(pid)
        if stat is None:
            return {"pid": pid, "user": None, "command": None, "job": None, "run": None, "rank": None}
        key = (pid, stat.start)
        if key not in self._known:
            if len(self._known) > KNOWN_PROCESSES:
                self._known.clear()
            self._known[key] = _describe(pid)
        return self._known[key]


def _describe(pid: int) -> Dict[str, Any]:
    marks = proc.variables(pid)
    run, rank = marks.get(ENV_RUN), marks.get("RANK", "")
    return {
        "pid": pid,
        "user": owner(pid),
        "command": proc.command_line(pid, GPU_COMMAND_LETTERS),
        "job": marks.get(ENV_JOB),
        "run": run,
        "rank": int(rank) if run and rank.isdecimal() and len(rank) < 7 else None,
    }


def by_tool() -> Seen:
    """Read the GPUs from nvidia-smi. Raises ValueError: nvidia-smi gives no answer."""
    tables = []
    for query in ("--query-gpu=" + _FIELDS, "--query-compute-apps=gpu_uuid,pid,used_memory"):
        said = tool.run(["nvidia-smi", query, _FORM], NVIDIA_SMI_S)
        if said["code"] != 0:
            late = "no answer within %g s" % NVIDIA_SMI_S
            raise ValueError("nvidia-smi: %s" % (late if said["timed_out"] else tool.last_stderr_line(said)))
        tables.append(said["stdout"])
    return of_tables(*tables)


def of_tables(gpus: str, apps: str) -> Seen:
    """Read the GPUs from nvidia-smi's two tables."""
    pids: Dict[str, Dict[int, Optional[int]]] = {}
    for uuid, pid, memory in rows(apps, 3):
        if pid.isdecimal() and len(pid) < 10:
            pids.setdefault(uuid, {})[int(pid)] = _bytes(memory)
    found = []
    for uuid, name, use, used, total, heat, power, limit, reasons in rows(gpus, len(_FIELDS.split(","))):
        found.append(
            {
                "name": name,
                "use": number(use),
                "memory": _bytes(used),
                "memory_total": _bytes(total),
                "temperature": number(heat),
                "power_w": number(power),
                "power_limit_w": number(limit),
                "slowed": _slowed(reasons),
                "pids": pids.get(uuid, {}),
                "error": None,
            }
        )
    return found


def _slowed(reasons: str) -> Optional[bool]:
    try:
        return bool(int(reasons, 16) & SLOWED)
    except ValueError:  # [N/A]
        return None


def _bytes(text: str) -> Optional[int]:
    value = number(text)
    return None if value is None or not 0 <= value < 1e9 else int(value * _MB)


def by_files(sys: str = "/sys") -> Seen:
    """Read AMD's GPUs from the kernel's files, because rocm-smi hangs on a wedged driver."""
    kfd = sys + "/class/kfd/kfd"
    numbers = _ids(kfd + "/topology/nodes")
    found = []
    for gpu in amd.gpus(kfd + "/topology/nodes", sys + "/class/drm"):
        device = "%s/class/drm/%s/device" % (sys, os.path.basename(gpu["render"]))
        watts = _sensor(device, "power1_average") or _sensor(device, "power1_input")
        heat, limit = _sensor(device, "temp1_input"), _sensor(device, "power1_cap")
        use = read_number(device + "/gpu_busy_percent")
        found.append(
            {
                "name": read_text(device + "/product_name", limit=200).strip() or "gfx %d" % gpu["gfx"],
                "use": None if use is None else float(use),
                "memory": gpu["used"],
                "memory_total": gpu["total"],
                "temperature": None if heat is None else heat / 1e3,
                "power_w": None if watts is None else watts / 1e6,
                "power_limit_w": None if limit is None else limit / 1e6,
                "slowed": None,
                "pids": _pids(kfd + "/proc", numbers.get(gpu["render"])),
                "error": None,
            }
        )
    return found


def _sensor(device: str, name: str) -> Optional[int]:
    values = (read_number(path) for path in sorted(glob.glob("%s/hwmon/hwmon*/%s" % (device, name))))
    return next((value for value in values if value is not None), None)


def _ids(nodes: str) -> Dict[str, int]:
    """Return the compute driver's number of each GPU by render node."""
    found = {}
    for folder in glob.glob(nodes + "/*"):
        words = (line.split() for line in read_text(folder + "/properties").splitlines())
        minor = {word[0]: word[1] for word in words if len(word) == 2}.get("drm_render_minor", "0")
        number_of_gpu = read_number(folder + "/gpu_id")
        if number_of_gpu:
            found["/dev/dri/renderD" + minor] = number_of_gpu
    return found


def _pids(root: str, gpu: Optional[int]) -> Dict[int, Optional[int]]:
    """Return the processes that have memory on a GPU. Processes of other users may be hidden."""
    found: Dict[int, Optional[int]] = {}
    for path in glob.glob("%s/*/vram_%s" % (root, gpu)):
        pid, used = os.path.basename(os.path.dirname(path)), read_number(path)
        if pid.isdecimal() and used:
            found[int(pid)] = used
    return found
