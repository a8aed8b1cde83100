"""What lies between the GPUs on the PCI bus: translation by the IOMMU, and bridges that send traffic up to it."""

from __future__ import annotations

import os
import struct
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import read_text
from ddpctl_worker.facts.nvidia import _DISPLAY, pci_devices

_EXTENDED = 0x100
_ACS = 0x000D


def gpu_paths(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``gpus``: for each GPU of NVIDIA's the type of its IOMMU group (``DMA``, ``DMA-FQ``, ``identity``; None without
    an IOMMU) and the bridges above it. ``acs``: each bridge's ACS control word; None where only root may read it."""
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
    """The PCI bridges on the way from the root to a device."""
    path = os.path.realpath("/sys/bus/pci/devices/" + slot)
    return [part for part in path.split("/")[:-1] if os.path.exists("/sys/bus/pci/devices/" + part)]


def _config(slot: str) -> bytes:
    try:
        with open("/sys/bus/pci/devices/%s/config" % slot, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def acs_control(config: bytes) -> Optional[int]:
    """The control word of the ACS capability, 0 where there is none; None where its part was not to be read."""
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
