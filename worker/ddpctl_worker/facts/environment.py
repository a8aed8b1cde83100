"""What a job's processes would inherit from this login: variables, NCCL's own files, libraries in the way."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List

from ddpctl_worker.facts import read_text

_PREFIXES = ("PET_", "NCCL_", "GLOO_", "TORCH", "MASTER_", "CUDA_", "OMP_", "MKL_", "KMP_", "UCX_", "FI_")
_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"}
)
_TEXT_LIMIT = 4096
_CACHE_LIMIT = 16 << 20
# Where Amazon's installer and its documentation put the plugin for EFA.
_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
)


def environment(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``variables`` that steer torch and its libraries (no other is ever read), the settings in NCCL's files, each
    libnccl that LD_LIBRARY_PATH would put before torch's own, NCCL's network plugins that a process finds, and those
    that are installed elsewhere."""
    variables = {
        name: value[:_TEXT_LIMIT] for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)
    }
    path = params.get("library_path") or os.environ.get("LD_LIBRARY_PATH", "")
    own = params.get("conf_file") or os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"
    return {
        "variables": variables,
        "nccl_conf": {name: settings(name) for name in ("/etc/nccl.conf", own) if settings(name)},
        "libnccl": libraries(path, "libnccl.so*"),
        "net_plugins": libraries(path, "libnccl-net*.so*") + cached("libnccl-net"),
        "plugins_elsewhere": libraries(":".join(_PLUGIN_FOLDERS), "libnccl-net*.so*"),
    }


def settings(name: str) -> List[str]:
    """The lines of a configuration file that say something."""
    text = read_text(os.path.expanduser(name), limit=_TEXT_LIMIT)
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def cached(name: str) -> List[str]:
    """Paths of the system's library cache that have ``name`` in their last part."""
    pattern = rb"/[\x21-\x7e]*/" + re.escape(name.encode()) + rb"[\x21-\x7e]*"
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            return sorted({path.decode() for path in re.findall(pattern, file.read(_CACHE_LIMIT))})
    except OSError:
        return []


def libraries(path: str, name: str) -> List[str]:
    """Every library of that name in the folders of a search path, with its symbolic links resolved (the version is in
    the name then)."""
    found: List[str] = []
    for folder in path.split(":"):
        if folder:
            for file in sorted(glob.glob(os.path.join(glob.escape(folder), name))):
                real = os.path.realpath(file)
                if real not in found:
                    found.append(real)
    return found
