"""AMD GPUs, from the kernel's files alone: they never hang, unlike rocm-smi on a wedged driver."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, List

from ddpctl_worker.facts import user_name
from ddpctl_worker.facts.limits import LEAST_VRAM_BYTES
from ddpctl_worker.machine.fs import read_number, read_text

_VENDOR = "0x1002"
_CARDS = ("0x0380", "0x1200")  # display controller without a display, processing accelerator
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_DRM = "/sys/class/drm"


def amd_gpus(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the GPUs of this node.

    gpus      GPUs of the compute driver (KFD)
    pci       accelerators on the bus
    missing   device nodes that do not exist
    closed    device nodes that this login may not open
    """
    found = gpus()
    nodes = ["/dev/kfd", *(gpu["render"] for gpu in found)] if found else []
    return {
        "gpus": found,
        "pci": accelerators(),
        "missing": [path for path in nodes if not os.path.exists(path)],
        "closed": [path for path in nodes if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)],
        "user": user_name(),
        "driver": read_text("/sys/module/amdgpu/version").strip(),
    }


def gpus(root: str = _NODES, drm: str = _DRM) -> List[Dict[str, Any]]:
    """Return every GPU of the KFD topology: ``bus``, ``gfx`` (90402 is gfx942), ``render`` node, memory in bytes."""
    found = []
    for folder in sorted(glob.glob(root + "/*"), key=lambda path: (len(path), path)):
        words = (line.split() for line in read_text(folder + "/properties").splitlines())
        values = {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdigit()}
        if not values.get("gfx_target_version"):
            continue  # a processor, not a GPU
        minor = values.get("drm_render_minor", 0)
        device = "%s/renderD%d/device" % (drm, minor)
        total = read_number(device + "/mem_info_vram_total")
        if total is not None and total < LEAST_VRAM_BYTES:
            continue
        found.append(
            {
                "bus": bus_id(values.get("domain", 0), values.get("location_id", 0)),
                "gfx": values["gfx_target_version"],
                "render": "/dev/dri/renderD%d" % minor,
                "total": total,
                "used": read_number(device + "/mem_info_vram_used"),
            }
        )
    return found


def usable() -> int:
    """Return the number of GPUs with a device node: a container has all GPUs in /sys and its own in /dev."""
    return sum(os.path.exists(gpu["render"]) for gpu in gpus()) if os.path.exists("/dev/kfd") else 0


def bus_id(domain: int, location: int) -> str:
    """Return the PCI address, such as ``0000:1b:00.0``."""
    return "%04x:%02x:%02x.%d" % (domain, location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7)


def accelerators() -> List[str]:
    """Return the PCI addresses of AMD's accelerators."""
    found = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if read_text(folder + "/vendor").strip() == _VENDOR and read_text(folder + "/class").startswith(_CARDS):
            found.append(os.path.basename(folder))
    return found
