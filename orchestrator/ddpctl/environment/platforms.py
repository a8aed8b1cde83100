"""The platforms of nodes (interpreter, machine, C library, NVIDIA driver), and which nodes share a lock. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags

from ddpctl.environment.tools import MACHINES, machine_type
from ddpctl.errors import ProvisionError
from ddpctl.spec import nvidia
from ddpctl.spec.fold import group_by
from ddpctl.spec.question import Answer, Question

# Minor glibc versions of the manylinux platforms that uv supports; a node gets the newest that its C library allows.
_UV_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
_DRIVER = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)")

QUESTIONS = (Question("python", deadline=10.0), nvidia.KERNEL, nvidia.SMI)


@dataclass(frozen=True)
class NodePlatform:
    """A node's platform. Without an NVIDIA driver there is no ``driver``; ``capabilities`` are its GPUs'."""

    python: tuple[int, int]
    machine: str
    glibc: int  # the minor version of glibc 2
    driver: tuple[int, ...] | None = None
    capabilities: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, order=True)
class Platform:
    """The target of a lock: nodes with the same machine and Python; ``glibc`` is their oldest."""

    machine: str
    python: tuple[int, int]
    glibc: int

    @property
    def python_version(self) -> str:
        return f"{self.python[0]}.{self.python[1]}"

    @property
    def uv_platform(self) -> str:
        return f"{self.machine}-manylinux_2_{max(minor for minor in _UV_GLIBC if minor <= self.glibc)}"

    @property
    def label(self) -> str:
        """The target's name in files and messages: no blanks, no slashes."""
        return f"cp{self.python[0]}{self.python[1]}-{self.machine}-glibc2_{self.glibc}"

    @property
    def environment(self) -> dict[str, str]:
        """The values of PEP 508 markers on these nodes. The patch level of Python may differ, so it is 0."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python_version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python_version}.0",
            "python_version": self.python_version,
            "sys_platform": "linux",
        }

    @property
    def tags(self) -> list[Tag]:
        """The wheel tags that install on these nodes, best first."""
        old = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        platforms = []
        for minor in range(self.glibc, 4, -1):
            platforms.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in old and (self.machine == "x86_64" or minor == 17):
                platforms.append(f"{old[minor]}_{self.machine}")
        platforms.append(f"linux_{self.machine}")
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        return [*cpython_tags(self.python, platforms=platforms), *compatible_tags(self.python, interpreter, platforms)]


def read_platform(host: str, answers: Mapping[str, Answer]) -> NodePlatform:
    """Return the platform in a node's answers to QUESTIONS.

    Raises:
        ProvisionError: no packages can be resolved for such a node.
    """
    python = answers["python"]
    if not python.ok:
        raise ProvisionError(f"cannot tell its platform: {python.error}", host=host)
    value = python.value
    return NodePlatform(
        python=_cpython(host, value),
        machine=_machine(host, value),
        glibc=_glibc(host, value),
        driver=_driver(answers),
        capabilities=tuple(_capabilities(answers)),
    )


def _cpython(host: str, value: Mapping[str, Any]) -> tuple[int, int]:
    if value["implementation"] != "CPython":
        raise ProvisionError(
            f"its python is {value['implementation']}, and torch exists for CPython only",
            hint="name a CPython with the inventory's `python:` key",
            host=host,
        )
    return int(value["info"][0]), int(value["info"][1])


def _machine(host: str, value: Mapping[str, Any]) -> str:
    machine = machine_type(str(value["machine"]))
    if machine not in MACHINES:
        raise ProvisionError(
            f"a managed environment cannot be made for machine {value['machine']}",
            hint="set environment.mode: existing and install torch there yourself",
            host=host,
        )
    return machine


def _glibc(host: str, value: Mapping[str, Any]) -> int:
    version = re.match(r"2\.(\d+)", str(value.get("libc_version", "")))
    if value.get("libc") != "glibc" or not version or int(version[1]) < _UV_GLIBC[0]:
        raise ProvisionError(
            f"a managed environment needs glibc 2.{_UV_GLIBC[0]} or newer; this has "
            f"{value.get('libc') or 'another C library'} {value.get('libc_version', '')}".rstrip(),
            hint="set environment.mode: existing and install torch there yourself",
            host=host,
        )
    return int(version[1])


def _driver(answers: Mapping[str, Answer]) -> tuple[int, ...] | None:
    """Return the driver's version: the kernel's, or nvidia-smi's if the kernel's file is hidden (containers)."""
    match = _DRIVER.search(str((answers[nvidia.KERNEL.key].value or {}).get("version", "")))
    text = match[1] if match else next(iter(_column(answers, "driver_version")), "")
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"\d+(\.\d+)+", text) else None


def _capabilities(answers: Mapping[str, Answer]) -> Iterable[tuple[int, int]]:
    for text in _column(answers, "compute_cap"):
        match = re.fullmatch(r"(\d+)\.(\d+)", text)
        if match:
            yield int(match[1]), int(match[2])


def _column(answers: Mapping[str, Answer], name: str) -> list[str]:
    smi = answers[nvidia.SMI.key]
    rows = nvidia.table(smi.value["gpu"]["stdout"] if smi.ok and smi.value else "")
    return [text for row in rows if (text := row.get(name))]


def targets(platforms: Mapping[str, NodePlatform]) -> dict[Platform, list[str]]:
    """Return which hosts share a lock, in the order of the hosts."""
    groups = group_by(lambda host: (platforms[host].machine, platforms[host].python), platforms)
    return {
        Platform(machine, python, min(platforms[host].glibc for host in hosts)): hosts
        for (machine, python), hosts in groups.items()
    }


def same_python(groups: Mapping[Platform, Sequence[str]]) -> str | None:
    """Return a warning if the nodes' Python versions differ."""
    by_version: dict[str, list[str]] = {}
    for target, hosts in groups.items():
        by_version.setdefault(target.python_version, []).extend(hosts)
    if len(by_version) < 2:
        return None
    parts = ", ".join(f"{version} on {' '.join(hosts)}" for version, hosts in sorted(by_version.items()))
    return f"the nodes run different Pythons ({parts}): objects pickled on one may not load on another"
