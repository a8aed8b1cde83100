"""The questions a node can answer, one subject a file.

A fact is a function ``(params, context) -> JSON-able value``. ``context`` holds ``base_dir`` and ``deadline``
(seconds). It states what is there and judges nothing; text of other programs is handed on raw, so that the verdicts
can be tested on recordings.
"""

from __future__ import annotations

import importlib
import os
import pwd
from typing import Any, Callable, Dict

Fact = Callable[[Dict[str, Any], Dict[str, Any]], Any]

# name -> module; the function has the question's name. A module is imported only when it is asked for.
QUESTIONS = {
    "python": "versions",
    "versions": "versions",
    "torch_import": "torch_import",
    "modules": "modules",
    "machine": "machine",
    "names": "machine",
    "cgroup": "machine",
    "tables": "machine",
    "login": "machine",
    "shell": "machine",
    "network": "network",
    "environment": "environment",
    "disk": "disk",
    "path": "paths",
    "script": "paths",
    "tree": "paths",
    "port": "port",
    "leftovers": "processes",
    "nvidia_kernel": "nvidia",
    "nvidia_smi": "nvidia",
    "fabric_manager": "nvidia",
    "amd_gpus": "amd",
    "gpu_devices": "devices",
    "kernel_log": "kernel_log",
    "infiniband": "infiniband",
    "gpu_paths": "pci",
}


def ask(name: str, params: Dict[str, Any], context: Dict[str, Any]) -> Any:
    """Answer one question; raises KeyError for a question this worker does not know."""
    if name not in QUESTIONS:
        raise KeyError("this worker has no question %r" % (name,))
    module = importlib.import_module("ddpctl_worker.facts." + QUESTIONS[name])
    fact: Fact = getattr(module, name)
    return fact(params, context)


def boot_id() -> str:
    """This boot of this machine."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def user_name() -> str:
    """The login's name, or its number where the password file has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def read_text(path: str, limit: int = 1 << 20) -> str:
    """A small text file, at most ``limit`` bytes of it; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
