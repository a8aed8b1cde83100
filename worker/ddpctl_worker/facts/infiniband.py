"""InfiniBand, RoCE and EFA adapters: the kernel's state of every port, and whether a process here may use it."""

from __future__ import annotations

import errno
import glob
import json
import os
import sys
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import program_seconds
from ddpctl_worker.facts.limits import MOST_GIDS
from ddpctl_worker.machine import tool
from ddpctl_worker.machine.fs import read_number, read_text

_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
CLASS = "/sys/class/infiniband"
# NCCL looks for the first two files, and since 2.23 also for the third.
_PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)

# The same calls as NCCL's. In a process of its own, as a vendor's library may crash.
PROGRAM = r"""
import ctypes, json
out = {"error": None, "devices": [], "mtus": {}}
try:
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
except OSError as error:
    out["error"] = str(error)
else:
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
    count = ctypes.c_int(0)
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    for number in range(count.value if devices else 0):
        name = verbs.ibv_get_device_name(devices[number]).decode()
        context = verbs.ibv_open_device(devices[number])
        if not context:
            continue
        out["devices"].append(name)
        attributes = (ctypes.c_int * 256)()  # state, max_mtu, active_mtu, and more
        if verbs.ibv_query_port(context, 1, attributes) == 0 and 1 <= attributes[2] <= 5:
            out["mtus"][name] = 128 << attributes[2]
print(json.dumps(out))
"""


def infiniband(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the adapters of this node.

    ports     the kernel's own text (``state`` is ``4: ACTIVE`` for a working port), the GID table, the driver, the MTU
    access    device -> why its node in /dev cannot be opened; ``None`` if it can
    verbs     the devices that libibverbs finds and opens
    peermem   the marks of a kernel module that gives an adapter access to GPU memory
    """
    ports = [_port(folder) for folder in sorted(glob.glob(CLASS + "/*/ports/*"))]
    devices = sorted({port["device"] for port in ports})
    return {
        "ports": ports,
        "access": {device: access(device) for device in devices},
        "verbs": libibverbs(context) if devices else None,
        "peermem": [path for path in _PEERMEM if os.path.exists(path)],
    }


def _port(folder: str) -> Dict[str, Any]:
    device = folder.split("/")[-3]
    table = gids(folder)
    interface = next((gid["interface"] for gid in table if gid["interface"]), "")
    return {
        "device": device,
        "port": int(os.path.basename(folder)),
        "driver": os.path.basename(os.path.realpath("%s/%s/device/driver" % (CLASS, device))),
        "state": read_text(folder + "/state").strip(),
        "phys_state": read_text(folder + "/phys_state").strip(),
        "rate": read_text(folder + "/rate").strip(),
        "link_layer": read_text(folder + "/link_layer").strip(),
        "interface_mtu": read_number("/sys/class/net/%s/mtu" % interface) if interface else None,
        "gids": table,
    }


def access(device: str) -> Optional[str]:
    """Return why the device's node cannot be opened, or ``None``. A container sees all of /sys and little of /dev."""
    for path in glob.glob("/sys/class/infiniband_verbs/uverbs*"):
        if read_text(path + "/ibdev").strip() == device:
            node = "/dev/infiniband/" + os.path.basename(path)
            try:
                os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
                return None
            except OSError as error:
                return "%s: %s (%s)" % (node, error.strerror, errno.errorcode.get(error.errno or 0, "?"))
    return "no /dev/infiniband/uverbs node (is ib_uverbs loaded?)"


def libibverbs(context: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``devices`` that libibverbs opens, ``mtus`` of their first ports, or the ``error`` of its load."""
    result = tool.run([sys.executable, "-I", "-c", PROGRAM], timeout=program_seconds(context))
    try:
        found: Dict[str, Any] = json.loads(result["stdout"].splitlines()[-1])
        return found
    except (ValueError, IndexError):
        said = (result["stderr"].strip().splitlines() or ["it ended with status %s" % result["code"]])[-1]
        error = "libibverbs does not answer" if result["timed_out"] else "libibverbs fails: " + said
        return {"error": error, "devices": [], "mtus": {}}


def gids(folder: str) -> List[Dict[str, Any]]:
    """Return the used entries of the GID table: index, address, type (``RoCE v2``, ``IB/RoCE v1``) and interface."""
    found = []
    for path in sorted(glob.glob(folder + "/gids/*"), key=lambda name: int(os.path.basename(name)))[:MOST_GIDS]:
        index = os.path.basename(path)
        gid = read_text(path).strip()
        if gid and gid != _ZERO:
            found.append(
                {
                    "index": int(index),
                    "gid": gid,
                    "type": read_text(folder + "/gid_attrs/types/" + index).strip(),
                    "interface": read_text(folder + "/gid_attrs/ndevs/" + index).strip(),
                }
            )
    return found
