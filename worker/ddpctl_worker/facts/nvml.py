"""Calls NVIDIA's management library directly: each run of nvidia-smi costs a process of tens of milliseconds.

Not run on a GPU so far. Names and layouts are from NVIDIA's nvml.h, which never changes the number of a function.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts.limits import GPU_PROCESSES

LIBRARY, OF_WSL = "libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"
_OK, _MORE = 0, 7  # NVML_SUCCESS, NVML_ERROR_INSUFFICIENT_SIZE
_CORE = 0  # NVML_TEMPERATURE_GPU
_TEXT = 96  # bytes of a name
_NOT_KNOWN = (1 << 64) - 1
# nvmlClocksThrottleReasonHwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
# The last function has shorter entries, see _OldHolder.
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _OldHolder(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))


class _Holder(ctypes.Structure):
    _fields_ = (*_OldHolder._fields_, ("instance", ctypes.c_uint), ("compute", ctypes.c_uint))


class NvmlError(Exception):
    """An error in the library's own words."""


class Nvml:
    """The library, initialized. Raises OSError: no library; NvmlError: the library cannot be used."""

    def __init__(self) -> None:
        self._library = _load()
        self._check(self._library.nvmlInit_v2())
        handles = [self._handle(index) for index in range(self._count())]
        self._gpus = [(handle, self._about(handle)) for handle in handles]

    def read(self) -> List[Dict[str, Any]]:
        """Return every GPU; an unknown value is ``None``. ``pids``: pid -> bytes of the process there, or ``None``."""
        return [dict(fixed, **self._now(handle)) for handle, fixed in self._gpus]

    def _count(self) -> int:
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        return count.value

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)))
        return handle

    def _about(self, handle: ctypes.c_void_p) -> Dict[str, Any]:
        name = ctypes.create_string_buffer(_TEXT)
        code = self._library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_TEXT))
        limit = _thousandth(self._number("nvmlDeviceGetEnforcedPowerLimit", handle))
        return {"name": name.value.decode("utf-8", "replace") if code == _OK else "", "power_limit_w": limit}

    def _now(self, handle: ctypes.c_void_p) -> Dict[str, Any]:
        use, memory, heat = _Utilization(), _Memory(), ctypes.c_uint()
        code = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use))
        answer = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        has_memory = answer == _OK
        has_heat = self._library.nvmlDeviceGetTemperature(handle, _CORE, ctypes.byref(heat)) == _OK
        return {
            "use": float(use.gpu) if code == _OK else None,
            "memory": memory.used if has_memory else None,
            "memory_total": memory.total if has_memory else None,
            "temperature": float(heat.value) if has_heat else None,
            "power_w": _thousandth(self._number("nvmlDeviceGetPowerUsage", handle)),
            "slowed": self._slowed(handle),
            "pids": self._pids(handle),
            "error": None if has_memory else self._words(answer),  # a lost GPU answers nothing
        }

    def _number(self, function: str, handle: ctypes.c_void_p) -> Optional[int]:
        value = ctypes.c_uint()
        return value.value if getattr(self._library, function)(handle, ctypes.byref(value)) == _OK else None

    def _slowed(self, handle: ctypes.c_void_p) -> Optional[bool]:
        """Return whether heat or power reduces the GPU's clock."""
        reasons = ctypes.c_ulonglong()
        function = getattr(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        known = function is not None and function(handle, ctypes.byref(reasons)) == _OK
        return bool(reasons.value & SLOWED) if known else None

    def _pids(self, handle: ctypes.c_void_p) -> Dict[int, Optional[int]]:
        listing = next((name for name in _LISTS if hasattr(self._library, name)), None)
        if listing is None:
            return {}
        entries: Any = ((_OldHolder if listing == _LISTS[-1] else _Holder) * GPU_PROCESSES)()
        count = ctypes.c_uint(GPU_PROCESSES)
        code = getattr(self._library, listing)(handle, ctypes.byref(count), entries)
        found = entries[: min(count.value, GPU_PROCESSES)] if code in (_OK, _MORE) else []
        return {entry.pid: None if entry.memory == _NOT_KNOWN else entry.memory for entry in found if entry.pid}

    def _check(self, code: int) -> None:
        if code != _OK:
            raise NvmlError(self._words(code))

    def _words(self, code: int) -> str:
        function = self._library.nvmlErrorString
        function.restype = ctypes.c_char_p
        return "NVML: %s" % (function(code) or b"error %d" % code).decode("utf-8", "replace")


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return ctypes.CDLL(OF_WSL)


def _thousandth(value: Optional[int]) -> Optional[float]:
    return None if value is None else value / 1000.0
