"""The build of torch: the newest CUDA build that every node's driver and every GPU can run, or cpu. Pure.

GPU generations are from PyTorch's release notes and support matrix. From torch 2.8 on, the builds for CUDA 12.8 and
newer have no code for GPUs before compute capability 7.5, and only these builds have code for 10.0 and later
(Blackwell). The names are the names of PyTorch's own wheel indexes. The oldest driver of each build is in
spec/nvidia.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ddpctl.environment.platforms import NodePlatform
from ddpctl.spec import nvidia

CPU = "cpu"


@dataclass(frozen=True)
class Build:
    """A CUDA build: its name and the compute capabilities that it has code for (inclusive)."""

    name: str
    oldest: tuple[int, int]
    newest: tuple[int, int]

    @property
    def driver(self) -> tuple[int, ...]:
        """The oldest driver that runs the build: ``cu126`` is built with CUDA 12.6."""
        return nvidia.numbers(nvidia.least_driver(f"{self.name[2:-1]}.{self.name[-1]}") or "")


BUILDS = (
    Build("cu132", (7, 5), (99, 0)),
    Build("cu130", (7, 5), (99, 0)),
    Build("cu129", (7, 5), (99, 0)),
    Build("cu128", (7, 5), (99, 0)),
    Build("cu126", (5, 0), (9, 99)),
    Build("cu124", (5, 0), (9, 99)),
    Build("cu121", (5, 0), (9, 99)),
    Build("cu118", (3, 7), (9, 99)),
)


def candidates(wish: str, platforms: Iterable[NodePlatform]) -> tuple[str, ...]:
    """Return the builds to try, best first; never empty. ``wish`` is the inventory's torch_backend.

    With ``auto``: the builds that run on every node. Only ``cpu`` is left if a node has no NVIDIA driver, or if no
    single build has code for all GPUs.
    """
    if wish != "auto":
        return (wish,)
    nodes = list(platforms)
    if not nodes or any(node.driver is None for node in nodes):
        return (CPU,)
    return tuple(build.name for build in BUILDS if all(_runs(build, node) for node in nodes)) or (CPU,)


def _runs(build: Build, node: NodePlatform) -> bool:
    fits = all(build.oldest <= capability <= build.newest for capability in node.capabilities)
    return node.driver is not None and node.driver >= build.driver and fits


def is_build(version: str, backend: str, cuda_packages: Collection[str]) -> bool:
    """Return whether a resolved torch ``version`` is of ``backend``.

    A local version (``2.13.0+cu126``) names its build. Without a local version it is the package index's default, on
    Linux a CUDA build: then the CUDA packages among its dependencies decide (``nvidia-...-cu12``, ``cuda-toolkit`` 13).
    Without such packages it is a CPU build.
    """
    local = version.partition("+")[2]
    if local:
        return local == backend
    if not cuda_packages:
        return backend == CPU
    majors = {name.rsplit("-cu", 1)[-1] for name in cuda_packages if "-cu" in name}
    return backend.startswith("cu") and backend[2:4] in majors
