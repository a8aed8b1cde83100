"""The slots of this host: its GPUs, identified by UUID; on a host without a GPU, numbers."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ddpctl_worker.facts import amd
from ddpctl_worker.facts.gpu import number, rows
from ddpctl_worker.facts.gpus import by_files
from ddpctl_worker.facts.processes import owner
from ddpctl_worker.machine import proc, tool
from ddpctl_worker.slots.limits import FOREIGN_MIB, GPU_LIST_S, SHOWN_LETTERS

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[0-9a-zA-Z/-]+)\)")
_APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"]
ORDER = "CUDA_DEVICE_ORDER"
# The variables that choose GPUs. The run's own choice is narrowed in the variable that makes it, else in the first.
NVIDIA = ("CUDA_VISIBLE_DEVICES",)
AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
CHOICES = (*AMD, ORDER)
_MIB = 1 << 20


class Slot(NamedTuple):
    """A slot. ``number``: its place on this host. ``visible``: its name in CUDA_VISIBLE_DEVICES; ``None``: no GPU."""

    id: str
    number: int
    visible: Optional[str] = None


class Foreign(NamedTuple):
    """A program on a GPU that belongs to no run with a claim. ``account``: ``None`` for another container."""

    slot: str
    pid: int
    account: Optional[str]
    command: str


class Devices(NamedTuple):
    """The slots of this host, and the variables that may choose among them; () on a host without a GPU."""

    slots: Tuple[Slot, ...]
    variables: Tuple[str, ...] = ()
    foreign: Tuple[Foreign, ...] = ()

    @property
    def are_gpus(self) -> bool:
        return bool(self.variables)


class GpusUnknown(Exception):
    """The GPUs cannot be listed now: the driver hangs, say."""


def find_devices(each: Optional[int], nodes: int = 1) -> Devices:
    """Return the slots. ``each``: the host's ``slots`` for each node that it is in the inventory; ``None``: auto.

    ``nodes``: how many hosts of the inventory are this machine (`connection: local`).

    Raises:
        GpusUnknown: nvidia-smi fails or hangs.
    """
    listing = tool.run_if_installed(["nvidia-smi", "-L"], GPU_LIST_S)
    if listing is not None and listing["timed_out"]:
        raise GpusUnknown("nvidia-smi -L gives no answer within %g s" % GPU_LIST_S)
    most = None if each is None else each * nodes
    nvidia = read_listing(listing["stdout"]) if listing is not None and listing["code"] == 0 else []
    if nvidia:
        return Devices(tuple(nvidia[:most]), NVIDIA, _nvidia_foreign())
    gpus = [gpu for gpu in amd.gpus() if os.path.exists(gpu["render"])]  # a container has all in /sys, its own in /dev
    if gpus:
        slots = [Slot(_amd_id(gpu), index, str(index)) for index, gpu in enumerate(gpus)]
        return Devices(tuple(slots[:most]), AMD, _amd_foreign())
    return Devices(tuple(Slot(str(index), index) for index in range(most or nodes)))


def read_listing(text: str) -> List[Slot]:
    """Return the slots in the output of ``nvidia-smi -L``. A GPU with MIG devices is not a slot, its devices are."""
    found: List[List[Slot]] = []
    for line in text.splitlines():
        gpu, device = _GPU.match(line), _MIG.match(line)
        if gpu:
            found.append([Slot(gpu.group(2), int(gpu.group(1)), gpu.group(1))])
        elif device and found:
            found[-1].append(Slot(device.group(1).replace("/", "-"), 0, device.group(1)))
    slots = [slot for gpu_slots in found for slot in (gpu_slots[1:] or gpu_slots)]
    return [slot._replace(number=place) for place, slot in enumerate(slots)]


def choose_pool(devices: Devices, env: Mapping[str, str]) -> Tuple[Slot, ...]:
    """Return the slots that a run with this environment may take, in the order in which it names them."""
    variable = _variable(devices, env)
    if variable is None or variable not in env:
        return devices.slots
    found: List[Slot] = []
    for word in (part.strip() for part in env[variable].split(",")):
        named = next((slot for slot in devices.slots if _is_named(slot, word)), None)
        if named is None or named in found:
            break  # CUDA ignores everything from the first invalid entry on
        found.append(named)
    return tuple(found)


def variables(devices: Devices, env: Mapping[str, str], slots: Tuple[Slot, ...]) -> Dict[str, str]:
    """Return the variables with which a run sees exactly ``slots``.

    CUDA numbers GPUs by speed unless CUDA_DEVICE_ORDER says otherwise. If the run wants that, its GPUs get their UUIDs.
    """
    variable = _variable(devices, env)
    if variable is None:
        return {}
    if devices.variables != NVIDIA:
        return {variable: ",".join(str(slot.visible) for slot in slots)}
    if env.get(ORDER, "PCI_BUS_ID") != "PCI_BUS_ID":
        return {variable: ",".join(slot.id if str(slot.visible).isdigit() else str(slot.visible) for slot in slots)}
    return {variable: ",".join(str(slot.visible) for slot in slots), ORDER: "PCI_BUS_ID"}


def _variable(devices: Devices, env: Mapping[str, str]) -> Optional[str]:
    chosen = (name for name in devices.variables if name in env)
    return next(chosen, devices.variables[0] if devices.variables else None)


def _is_named(slot: Slot, word: str) -> bool:
    return word == slot.visible or (word.startswith(("GPU-", "MIG-")) and slot.id.startswith(word.replace("/", "-")))


def _nvidia_foreign() -> Tuple[Foreign, ...]:
    said = tool.run_if_installed(_APPS, GPU_LIST_S)
    text = said["stdout"] if said is not None and said["code"] == 0 else ""
    return read_apps(text)


def read_apps(text: str) -> Tuple[Foreign, ...]:
    """Return the programs in nvidia-smi's table that use a GPU."""
    found = []
    for uuid, pid, name, memory in rows(text, 4):
        if pid.isdecimal() and len(pid) < 10 and (number(memory) or 0.0) >= FOREIGN_MIB:
            found.append(_foreign(uuid, int(pid), name))
    return tuple(found)


def _amd_id(gpu: Mapping[str, Any]) -> str:
    """Return the slot's name: the PCI address, since not every driver has a unique id."""
    return "AMD-" + str(gpu["bus"]).replace(":", "-")


def _amd_foreign() -> Tuple[Foreign, ...]:
    found = []
    for gpu, use in zip(amd.gpus(), by_files()):  # noqa: B905
        for pid, used in use["pids"].items():
            if (used or 0) >= FOREIGN_MIB * _MIB:
                found.append(_foreign(_amd_id(gpu), pid, ""))
    return tuple(found)


def _foreign(slot: str, pid: int, name: str) -> Foreign:
    """Describe a program. In a container the pids are the machine's, and mean nothing here."""
    here = proc.read_stat(pid) is not None
    command = proc.command_line(pid, SHOWN_LETTERS) if here else ""
    return Foreign(slot, pid, owner(pid) if here else None, (command or name)[:SHOWN_LETTERS])
