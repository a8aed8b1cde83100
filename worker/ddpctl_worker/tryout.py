"""The first import from a new environment: proof that it works on this node, and the versions that count."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List

from ddpctl_worker.link import Channel, WorkerError
from ddpctl_worker.uvtool import UvFailed, run_watched

IMPORT_S = 600.0

# Runs in the environment's own interpreter. argv: modules to import. NCCL's version exists in CUDA builds only.
_PROGRAM = """
import importlib, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    version = getattr(module, "__version__", None)
    if version is not None:
        found[name] = str(version)
    if name == "torch":
        if module.version.cuda:
            found["cuda"] = str(module.version.cuda)
        if getattr(module.distributed, "is_nccl_available", bool)():
            found["nccl"] = ".".join(str(part) for part in module.cuda.nccl.version())
print(json.dumps(found))
"""


def try_out(python: str, imports: List[str], channel: Channel) -> Dict[str, str]:
    """Import ``imports``; returns versions by module, and ``python``, ``cuda`` and ``nccl`` where there are any.

    Raises:
        WorkerError: an import fails; the last line of its traceback is in the message.
    """
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        said = run_watched([python, "-I", "-c", _PROGRAM, *imports], env, channel, IMPORT_S)
    except UvFailed as failed:
        raise WorkerError("import", "the environment does not work here: %s" % str(failed)[-600:]) from None
    found: Dict[str, Any] = json.loads(said.decode("utf-8").splitlines()[-1])
    return {str(key): str(value) for key, value in found.items()}
