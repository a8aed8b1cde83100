"""Tries a real ``import torch`` once for each environment of this node, and remembers it until the environment changes.

The devices are not remembered: each question asks the driver's library for them, without torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import program_seconds
from ddpctl_worker.facts.env import libraries, module_version, site_folders
from ddpctl_worker.facts.limits import DRIVER_S, KEPT_ENVIRONMENTS, LEAST_PROGRAM_S, PROGRAM_MARGIN_S
from ddpctl_worker.machine import tool
from ddpctl_worker.machine.fs import read_optional, read_text, write_json
from ddpctl_worker.machine.proc import boot_id

# Variables that choose and order the devices of a process.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
ROCM = "/opt/rocm/lib"

# Runs in a process of its own: the library may hang, and reads the job's variables only once. The program creates no
# context, so it takes no GPU memory. It prints one JSON line.
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
# Runs in a process of its own, with the job's search paths. Prints one JSON line.
PROGRAM = r"""
import json, sys, time, warnings
warnings.simplefilter("ignore")
begin = time.monotonic()
out = {"torch": None, "torchvision": None, "error": None, "torchvision_error": None}
def last(error):
    return "%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[-1])
def runtime_nccl():
    # The libnccl that torch has loaded and its version; torch itself only knows what it was built with. None: built in.
    import ctypes
    with open("/proc/self/maps") as maps:
        paths = ["/" + line.rstrip().partition("/")[2] for line in maps if "/libnccl.so" in line]
    if not paths:
        return None
    code = ctypes.c_int()
    ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(code))
    big = 10000 if code.value >= 10000 else 1000
    return paths[0], "%d.%d.%d" % (code.value // big, code.value % big // 100, code.value % 100)
try:
    import torch
    out["torch"] = str(torch.__version__)
    out["cuda"] = torch.version.cuda
    out["hip"] = getattr(torch.version, "hip", None)
    out["seconds"] = round(time.monotonic() - begin, 2)
    dist = torch.distributed
    out["distributed"] = dist.is_available()
    gloo = getattr(dist, "is_gloo_available", None)
    out["gloo"] = out["distributed"] and (gloo() if gloo else hasattr(torch._C._distributed_c10d, "ProcessGroupGloo"))
    out["nccl_available"] = out["distributed"] and dist.is_nccl_available()
    out["nccl"] = None
    out["arch_list"] = []
    out["devices"] = 0
    if torch.version.cuda or out["hip"]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        out["cuda_warning"] = str(caught[-1].message).strip().splitlines()[0] if caught else None
        out["arch_list"] = torch.cuda.get_arch_list()
        if out["nccl_available"]:
            version = torch.cuda.nccl.version()
            if isinstance(version, int):
                version = (version // 1000, version % 1000 // 100, version % 100)
            out["nccl"] = ".".join(str(part) for part in version)
            try:
                out["nccl_path"], out["nccl_runtime"] = runtime_nccl() or (None, out["nccl"])
            except (OSError, AttributeError):
                out["nccl_path"] = out["nccl_runtime"] = None
except BaseException as error:
    out["error"] = last(error)
else:
    try:
        import torchvision
        out["torchvision"] = str(torchvision.__version__)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            out["torchvision_error"] = last(error)
    except BaseException as error:
        out["torchvision_error"] = last(error)
out.setdefault("seconds", round(time.monotonic() - begin, 2))
sys.__stdout__.write("\nDDPCTL-IMPORT " + json.dumps(out) + "\n")
"""
_MARK = "DDPCTL-IMPORT "


def gpu_devices(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``seen`` with ``params["env"]``, the job's variables."""
    env = {str(k): str(v) for k, v in (params.get("env") or {}).items()}
    torch = module_version(site_folders(env.get("PYTHONPATH")), "torch") or {}
    return list_devices(env, torch.get("hip"), torch.get("path"), program_seconds(context))


def list_devices(env: Dict[str, str], hip: Optional[str], torch: Optional[str], timeout: float) -> Dict[str, Any]:
    """Return the GPUs that the driver's library reports.

        devices   the PCI addresses, in the order of the device numbers
        api       cuda or hip; ``None`` if neither library is there
        code      the library's own status, with its text in ``error``
        visible   the variables that choose devices

    A library that does not answer within ``timeout`` seconds has ``code`` ``None`` and an ``error``.
    """
    cuda, rocm = [["cuda", "libcuda.so.1"]], [["hip", name] for name in _hip(torch)]
    libraries = rocm + cuda if hip else cuda + rocm
    given = dict(os.environ, **env)
    result = tool.run([sys.executable, "-c", DEVICES_PROGRAM, json.dumps(libraries)], timeout=timeout, env=env, cwd="/")
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
    """Return the possible paths of HIP's library; torch's wheels bring their own."""
    own = [os.path.join(torch, "lib", "libamdhip64.so")] if torch else []
    return [*own, "libamdhip64.so", os.path.join(ROCM, "libamdhip64.so")]


def torch_import(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the result of a real import: versions, CUDA build, NCCL, gloo, GPU architectures, or the error's last
    line.

    ``params["env"]``: the variables of the job that change the import. A success is remembered. A failure is tried
    again, because its cure (a system library) often leaves the environment unchanged.

    ``live``: the present answer of the driver's library (see ``seen``; ``None``: torch is built for processors only).
    ``devices``: the number of GPUs that torch sees. If the driver sees another number, torch is imported again.
    """
    until = time.monotonic() + context["deadline"] - PROGRAM_MARGIN_S
    env = {str(k): str(v) for k, v in (params.get("env") or {}).items()}
    key = fingerprint(env)
    cache = cache_file("torch_import", context)
    known = read_optional(cache)
    live = _live(env)
    if key in known:
        value = known[key]["value"]
        if live and live["code"] is None and live["error"]:  # the driver hangs, and so would torch
            return dict(value, devices=0, live=live, cached=True)
        if value.get("devices", 0) == (len(live["devices"]) if live else 0):
            return dict(value, live=live, cached=True)
    result = tool.run(
        [sys.executable, "-c", PROGRAM],
        timeout=max(LEAST_PROGRAM_S, until - time.monotonic()),
        env=dict(env, OMP_NUM_THREADS="1"),
        cwd="/",
    )
    value = _value(result)
    if value["error"] is None:
        remember(cache, known, key, value)
    return dict(value, live=live, cached=False)


def _live(env: Dict[str, str]) -> Optional[Dict[str, Any]]:
    torch = module_version(site_folders(env.get("PYTHONPATH")), "torch") or {}
    if not (torch.get("cuda") or torch.get("hip")):
        return None
    return list_devices(env, torch.get("hip"), torch.get("path"), DRIVER_S)


def _value(result: Dict[str, Any]) -> Dict[str, Any]:
    for line in result["stdout"].splitlines():
        if line.startswith(_MARK):
            value: Dict[str, Any] = json.loads(line[len(_MARK) :])
            return value
    late = "import torch did not end within %.0f s" % result["seconds"]
    error = late if result["timed_out"] else tool.last_stderr_line(result)
    return {"torch": None, "error": error, "seconds": result["seconds"], "timed_out": result["timed_out"]}


def fingerprint(env: Dict[str, str]) -> str:
    """Return a hash of all that may change an import.

    It changes with the interpreter, the installed packages, the search paths, the driver, the visible devices, and a
    boot.
    """
    folders = site_folders(env.get("PYTHONPATH"))
    parts: List[Any] = [sys.executable, os.path.realpath(sys.executable), sys.version, sorted(env.items())]
    for folder in folders:
        parts.append([folder, stamp(folder), sorted(n for n in os.listdir(folder) if n.endswith("-info"))])
        parts.append([stamp(os.path.join(folder, m, "version.py")) for m in ("torch", "torchvision")])
    path = env.get("LD_LIBRARY_PATH") or os.environ.get("LD_LIBRARY_PATH", "")
    parts.append([path, [[name, stamp(name)] for name in libraries(path, "libnccl.so*")], stamp("/etc/ld.so.cache")])
    parts.append([os.environ.get(name) for name in VISIBLE])
    parts.append([os.uname().nodename, boot_id()])
    parts.append(read_text("/proc/driver/nvidia/version"))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def stamp(path: str) -> Optional[List[int]]:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def cache_file(name: str, context: Dict[str, Any]) -> str:
    """Return the file of this host's remembered answers. Each host has its own file, as a home on NFS is shared."""
    folder = os.path.join(os.path.expanduser(context.get("base_dir") or ""), "cache")
    return os.path.join(folder, "%s.%s.json" % (name, os.uname().nodename))


def remember(path: str, known: Dict[str, Any], key: str, value: Dict[str, Any]) -> None:
    """Remember an answer. A node with a full disk does not remember."""
    newest = sorted(known.items(), key=lambda item: -item[1].get("time", 0))[: KEPT_ENVIRONMENTS - 1]
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_json(path, dict(newest, **{key: {"time": time.time(), "value": value}}), durable=False)
