"""What a job's processes would inherit from this login: variables, NCCL's own files, libraries in the way."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, List

from ddpctl_worker.facts import read_text

_PREFIXES = ("PET_", "NCCL_", "GLOO_", "TORCH", "MASTER_", "CUDA_", "OMP_", "MKL_", "KMP_", "UCX_", "FI_")
_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"}
)
_TEXT_LIMIT = 4096


def environment(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """``variables`` that steer torch and its libraries (no other is ever read), the settings in NCCL's files, and each
    libnccl that LD_LIBRARY_PATH would put before torch's own."""
    variables = {
        name: value[:_TEXT_LIMIT] for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)
    }
    path = params.get("library_path") or os.environ.get("LD_LIBRARY_PATH", "")
    own = params.get("conf_file") or os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"
    return {
        "variables": variables,
        "nccl_conf": {name: settings(name) for name in ("/etc/nccl.conf", own) if settings(name)},
        "libnccl": libnccl(path),
    }


def settings(name: str) -> List[str]:
    """The lines of a configuration file that say something."""
    text = read_text(os.path.expanduser(name), limit=_TEXT_LIMIT)
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def libnccl(path: str) -> List[str]:
    """Every libnccl in the folders of a search path, with its symbolic links resolved (the version is in the name)."""
    found: List[str] = []
    for folder in path.split(":"):
        if folder:
            for name in sorted(glob.glob(os.path.join(glob.escape(folder), "libnccl.so*"))):
                real = os.path.realpath(name)
                if real not in found:
                    found.append(real)
    return found
