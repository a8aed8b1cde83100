"""The GPUs that a process of the job sees, asked of CUDA's or HIP's own driver library: live, and without torch."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import command
from ddpctl_worker.facts.versions import module_version, site_folders

# They choose and order what a process sees.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
ROCM = "/opt/rocm/lib"

# Runs in a process of its own: the library may hang, and it reads the job's variables once. It makes no context, so it
# takes no memory of a GPU. Prints one JSON line.
DEVICES_PROGRAM = r"""
import ctypes, json, sys
out = {"api": None, "code": None, "error": None, "devices": []}
def call(name, *args):
    code = getattr(lib, name)(*args)
    if code and out["code"] in (None, 0):
        out["code"], out["error"] = code, describe(code)
    elif out["code"] is None:
        out["code"] = 0
    return code == 0
def describe(code):
    text = ctypes.c_char_p()
    if out["api"] == "cuda":
        lib.cuGetErrorString(code, ctypes.byref(text))
    else:
        lib.hipGetErrorString.restype = ctypes.c_char_p
        text.value = lib.hipGetErrorString(code)
    return (text.value or b"unknown error").decode("utf-8", "replace")
for api, name in json.loads(sys.argv[1]):
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        out["error"] = out["error"] or str(error)
        continue
    out["api"], out["error"] = api, None
    break
if out["api"]:
    cuda = out["api"] == "cuda"
    count = ctypes.c_int()
    counting = "cuDeviceGetCount" if cuda else "hipGetDeviceCount"
    if (not cuda or call("cuInit", 0)) and call(counting, ctypes.byref(count)):
        for index in range(count.value):
            bus = ctypes.create_string_buffer(64)
            if call("cuDeviceGetPCIBusId" if cuda else "hipDeviceGetPCIBusId", bus, 64, index):
                out["devices"].append(bus.value.decode("ascii", "replace").lower())
sys.__stdout__.write("\nDDPCTL-DEVICES " + json.dumps(out) + "\n")
"""

_DEVICES_MARK = "DDPCTL-DEVICES "


def gpu_devices(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``seen`` with ``params["env"]``, the job's variables."""
    env = {str(k): str(v) for k, v in (params.get("env") or {}).items()}
    torch = module_version(site_folders(env.get("PYTHONPATH")), "torch") or {}
    return seen(env, torch.get("hip"), torch.get("path"), max(1.0, context["deadline"] - 1.0))


def seen(env: Dict[str, str], hip: Optional[str], torch: Optional[str], timeout: float) -> Dict[str, Any]:
    """``devices``: the PCI addresses in the order of the device numbers; ``api``: cuda or hip (None: neither library is
    there); ``code`` and ``error``: what the library itself said; ``visible``: the variables that choose devices.

    A library that does not answer within ``timeout`` seconds has ``code`` None and an ``error``.
    """
    cuda, rocm = [["cuda", "libcuda.so.1"]], [["hip", name] for name in _hip(torch)]
    libraries = rocm + cuda if hip else cuda + rocm
    given = dict(os.environ, **env)
    result = command.run(
        [sys.executable, "-c", DEVICES_PROGRAM, json.dumps(libraries)], timeout=timeout, env=env, cwd="/"
    )
    found: Dict[str, Any] = {"api": None, "code": None, "error": None, "devices": []}
    for line in result["stdout"].splitlines():
        if line.startswith(_DEVICES_MARK):
            found = json.loads(line[len(_DEVICES_MARK) :])
            break
    else:
        found["api"] = "hip" if hip else "cuda"
        found["error"] = (
            "the driver did not answer within %.0f s" % timeout
            if result["timed_out"]
            else "the driver's library ended the process with status %s" % result["code"]
        )
    return dict(found, visible={name: given[name] for name in VISIBLE if name in given})


def _hip(torch: Optional[str]) -> List[str]:
    """Where HIP's library may be: torch's wheels bring their own."""
    own = [os.path.join(torch, "lib", "libamdhip64.so")] if torch else []
    return [*own, "libamdhip64.so", os.path.join(ROCM, "libamdhip64.so")]
