"""The questions that a node can answer, a subject in each file.

A *fact* is a function ``(params, context) -> JSON-able value``. ``context`` holds ``base_dir`` and ``deadline``
(seconds). A fact reports the state and judges nothing. It passes the text of other programs on as it is, so that the
verdicts can be tested on recordings. ``probe.py`` answers all questions of a preflight in a forked child, a thread for
each question.

    host, network, processes      the machine, its addresses and ports, its processes
    nvidia, nvml, gpu, gpus, amd  GPUs: for preflight (nvidia, amd), the doctor (gpu) and ``top`` (gpus, nvml)
    infiniband                    InfiniBand, RoCE and EFA adapters
    env, interpreters, torch, job installed software, and the job's own files and imports

Files, below base_dir: cache/torch_import.HOST.json and cache/modules.HOST.json remember successful imports.
"""

from __future__ import annotations

import importlib
import os
import pwd
from typing import Any, Callable, Dict, Optional

from ddpctl_worker.facts.limits import LEAST_PROGRAM_S, PROGRAM_MARGIN_S
from ddpctl_worker.machine.fs import read_number

Fact = Callable[[Dict[str, Any], Dict[str, Any]], Any]

# A module is imported only when one of its questions is asked; its function has the question's name.
_MODULES = {
    "amd": ("amd_gpus",),
    "env": ("environment", "python", "versions"),
    "host": ("cgroup", "disk", "login", "machine", "shell"),
    "infiniband": ("infiniband",),
    "interpreters": ("interpreters",),
    "job": ("modules", "path", "script", "tree"),
    "network": ("names", "network", "tables"),
    "nvidia": ("fabric_manager", "gpu_paths", "kernel_log", "nvidia_kernel", "nvidia_smi"),
    "processes": ("leftovers", "port"),
    "torch": ("gpu_devices", "torch_import"),
}
QUESTIONS = {question: module for module, questions in _MODULES.items() for question in questions}


def ask(name: str, params: Dict[str, Any], context: Dict[str, Any]) -> Any:
    """Answer one question. Raises KeyError: this worker does not know the question."""
    if name not in QUESTIONS:
        raise KeyError("this worker has no question %r" % (name,))
    module = importlib.import_module("ddpctl_worker.facts." + QUESTIONS[name])
    fact: Fact = getattr(module, name)
    return fact(params, context)


def program_seconds(context: Dict[str, Any]) -> float:
    """Return how long a program may run that answers a question: it must end before the question's deadline."""
    return max(LEAST_PROGRAM_S, float(context["deadline"]) - PROGRAM_MARGIN_S)


def user_name(uid: Optional[int] = None) -> str:
    """Return the name of a user (default: of this login), or the number if the password file has no name."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def number(path: str) -> Optional[float]:
    """Return the number in a file of the kernel, or ``None`` for "max" and without such a file."""
    found = read_number(path)
    return None if found is None else float(found)
