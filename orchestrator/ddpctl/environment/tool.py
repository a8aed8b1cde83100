"""The uv that installs on the nodes: this machine's own where it runs there too, otherwise the wheel for them."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import uv

from ddpctl.environment.blobs import FileSource, hash_file
from ddpctl.environment.lock import LockRequest, resolve_one
from ddpctl.environment.locked import Wheel
from ddpctl.environment.platforms import Platform


@dataclass(frozen=True)
class Tool:
    """uv for one kind of node; ``kind`` is what the worker unpacks it from: ``binary`` or ``wheel``."""

    kind: str
    sha256: str
    source: FileSource | None  # a binary on this machine
    wheel: Wheel | None  # ... or one to fetch


def uv_for(target: Platform, request: LockRequest) -> Tool:
    """The tool for ``target``.

    Raises:
        ProvisionError: another machine type, and its wheel of uv cannot be found.
    """
    machine = platform.machine().lower()
    if sys.platform == "linux" and machine in (target.machine, {"x86_64": "amd64", "aarch64": "arm64"}[target.machine]):
        path = Path(uv.find_uv_bin())
        source = FileSource(path, hash_file(path), path.stat().st_size, "uv")
        return Tool("binary", source.sha256, source, None)
    environment = request.environment.model_copy(
        update={"packages": (f"uv=={version('uv')}",), "requirements": None, "project": None, "torch_backend": "cpu"}
    )
    lock = resolve_one(replace(request, environment=environment), target, ("cpu",))
    wheel = next(wheel for wheel in lock.wheels if wheel.name == "uv")
    return Tool("wheel", wheel.sha256, None, wheel)
