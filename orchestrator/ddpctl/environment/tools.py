"""Programs that ddpctl brings to the nodes: uv installs environments, py-spy reads the stacks of ranks."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ddpctl.environment.direct import FileSource, hash_file
from ddpctl.errors import ProvisionError

UV = "uv"
PY_SPY = "py-spy"
MACHINES = ("x86_64", "aarch64")  # supported machine types of nodes


def machine_type(name: str) -> str:
    """Return the wheels' name of a machine type, from the kernel's name."""
    lower = name.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(lower, lower)


def runs_there(machine: str) -> bool:
    """Return whether programs of this machine run on nodes of a machine type. Nodes always run Linux."""
    return sys.platform == "linux" and machine_type(platform.machine()) == machine_type(machine)


def own_program(name: str) -> FileSource:
    """Return the program that was installed with ddpctl. It is read once for its SHA-256: about 1 ms per MB.

    Raises:
        ProvisionError: the program is missing.
    """
    try:
        files = distribution(name).files or []
        path = next(Path(str(file.locate())).resolve() for file in files if file.name == name)
        return FileSource(path, hash_file(path), path.stat().st_size, name)
    except (PackageNotFoundError, StopIteration, OSError) as error:
        raise ProvisionError(f"{name} is not installed with ddpctl", hint="install ddpctl again") from error


def as_tool(sha256: str, filename: str) -> dict[str, str]:
    """Return the request for a tool that comes as a wheel or as the program itself."""
    return {"hash": sha256, "kind": "wheel" if filename.endswith(".whl") else "binary"}
