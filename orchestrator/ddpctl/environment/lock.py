"""From requirements to a lock for one kind of node, made by uv's resolver."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uv

from ddpctl.environment.backend import CPU, is_build
from ddpctl.environment.locked import Lock, addresses_in, anchored, read_lock, scrubbed
from ddpctl.environment.origins import Origins
from ddpctl.environment.platforms import NodePlatform, Platform
from ddpctl.environment.requirements import read_requirements, refuse_ignored, uv_settings
from ddpctl.errors import ProvisionError
from ddpctl.spec.command import REDACTED
from ddpctl.spec.inventory import Environment

RESOLVE_S = 600.0
_TORCH = "torch"
# What is compiled against one build of torch, and so must come with it from one place.
FAMILY = (_TORCH, "torchvision", "torchaudio", "torchtext")


@dataclass(frozen=True)
class LockRequest:
    """What to resolve: requirement lines, or a file of them, or a lock that somebody made already; and a project.

    ``folder`` is that of the inventory: uv's settings there hold for ``packages``.
    """

    environment: Environment
    origins: Origins
    folder: Path

    @property
    def pylock(self) -> Path | None:
        """The user's own pylock.toml, where that is what `requirements` names."""
        path = self.environment.requirements
        return Path(path) if path and self.environment.locked else None

    @property
    def place(self) -> Path:
        """Where uv runs: in the folder where a person would run it, for paths and for uv's settings there."""
        path = self.environment.requirements
        return Path(path).resolve().parent if path else Path(self.environment.project or self.folder)

    def lines(self) -> str:
        """As a requirements file for uv, beside the one that the inventory names."""
        project = self.environment.project
        return "".join(f"{line}\n" for line in (*self.environment.packages, *([_address(project)] if project else ())))

    def inputs(self, target: Platform, backends: Sequence[str]) -> str:
        """SHA-256 of everything that a lock for ``target`` depends on and that is written down on this machine."""
        known = {
            "packages": list(self.environment.packages),
            "project": self.environment.project,
            "files": [text for _, text in read_requirements(self.environment.requirements)],
            "settings": uv_settings(self.place),
            "origins": list(self.origins.all),
            "target": target.label,
            "backends": list(backends),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _address(project: str) -> str:
    """A project's folder as a requirement.

    Raises:
        ProvisionError: it is none.
    """
    folder = Path(project).resolve()
    if not any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise ProvisionError(f"{folder} has no pyproject.toml", hint="correct environment.project in the inventory")
    return folder.as_uri()


def resolve_one(request: LockRequest, target: Platform, backends: Sequence[str], pins: Sequence[str] = ()) -> Lock:
    """The lock for one kind of node. ``backends`` are tried in order; ``pins`` hold versions fixed."""
    if request.pylock is not None:
        text = read_requirements(str(request.pylock))[0][1]
        text = anchored(scrubbed(text, addresses_in(text)), request.pylock.resolve().parent)
        return read_lock(text, target, str(request.pylock))
    problem: ProvisionError | None = None
    # Somebody's own sources come first: where they have the right torch, its project's index need not be asked (and may
    # not even be reachable).
    for backend in (*((None,) if request.origins.own else ()), *backends):
        try:
            lock = _compile(request, target, backend, pins)
        except ProvisionError as error:
            problem = problem or error
            continue
        if (mixed := strangers(lock)) is not None:
            problem = problem or ProvisionError(
                f"builds of torch do not fit each other: {mixed}",
                hint="put all of them into one index, or one folder of environment.find_links",
            )
        elif backend is not None or _torch_fits(lock, backends):
            return lock
    assert problem is not None
    raise problem


def _torch_fits(lock: Lock, backends: Sequence[str]) -> bool:
    """The resolved torch, if any, is of one of the builds that run here."""
    version = lock.version(_TORCH)
    if version is None:
        return True
    cuda = [wheel.name for wheel in lock.wheels if wheel.name.startswith("nvidia-") or wheel.name == "cuda-toolkit"]
    return any(is_build(version, backend, cuda) for backend in backends)


def strangers(lock: Lock) -> str | None:
    """A sentence where the torch family does not come from one index: such builds do not fit each other.

    A server may spread one index over several names (download.pytorch.org, download-r2.pytorch.org).
    """
    places: dict[str, list[str]] = {}
    for wheel in lock.wheels:
        if wheel.name in FAMILY:
            parts = urlsplit(wheel.address)
            place = ".".join(parts.netloc.split(".")[-2:]) or parts.path.rpartition("/")[0]
            places.setdefault(place, []).append(f"{wheel.name} {wheel.version}")
    if len(places) < 2:
        return None
    return "; ".join(f"{' and '.join(names)} from {place}" for place, names in places.items())


def _compile(request: LockRequest, target: Platform, backend: str | None, pins: Sequence[str]) -> Lock:
    """One run of uv's resolver."""
    with tempfile.TemporaryDirectory(prefix="ddpctl-lock-") as name:
        folder = Path(name).resolve()  # uv writes paths that count from it
        inputs, fixed, output = folder / "requirements.in", folder / "constraints.txt", folder / "pylock.toml"
        inputs.write_text(request.lines(), encoding="utf-8")
        fixed.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        command = [uv.find_uv_bin(), "pip", "compile", str(inputs), "--constraints", str(fixed)]
        if request.environment.requirements:
            command += [str(Path(request.environment.requirements).resolve())]
        command += ["--format", "pylock.toml", "--output-file", str(output), "--no-header", "--no-annotate"]
        command += ["--python", sys.executable, "--python-version", target.python_version]
        command += ["--python-platform", target.uv_platform]
        command += ["--color", "never"]
        if request.origins.no_index:
            command += ["--no-index"]
        if backend is not None:
            command += ["--torch-backend", backend]
        refuse_ignored(_run(command, request.place, request.origins), request.environment.requirements)
        text = output.read_text(encoding="utf-8")
        text = anchored(scrubbed(text, addresses_in(text)), folder)
        return read_lock(text, target, "the resolved lock")


def uv_environment(origins: Origins) -> dict[str, str]:
    """This process's variables for a uv that looks for packages in ``origins``."""
    env = {name: value for name, value in os.environ.items() if name not in ("UV_TORCH_BACKEND", "UV_PYTHON")}
    return env | origins.uv_env()


def _run(command: Sequence[str], folder: Path, origins: Origins) -> str:
    """What it said."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=uv_environment(origins),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RESOLVE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(
            f"resolving the packages took longer than {RESOLVE_S:g} s", hint="check the network to the package index"
        ) from error
    if done.returncode != 0:
        raise ProvisionError(
            f"the packages cannot be resolved: {explanation(done.stderr, origins)}",
            hint="change environment.packages (or requirements, index_url, find_links) in the inventory",
        )
    return done.stderr


def explanation(text: str, origins: Origins) -> str:
    """uv's own words on one line, without any password."""
    for secret in sorted(origins.secrets(), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = re.sub(r"://[^/@\s]+@", "://", text)
    words = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("warning:")]
    first = next((number for number, word in enumerate(words) if word.startswith(("error:", "×"))), 0)
    return " ".join(words[first:]) or "uv gave no reason"


def backend_note(locks: Mapping[Platform, Lock], platforms: Mapping[str, NodePlatform]) -> str | None:
    """A sentence when GPUs will stay unused, because some node cannot run what the others could."""
    with_driver = [host for host, platform in platforms.items() if platform.driver is not None]
    without = [host for host, platform in platforms.items() if platform.driver is None]
    torch = next((lock.version(_TORCH) for lock in locks.values()), None)
    if torch and with_driver and without and torch.endswith(f"+{CPU}"):
        return f"torch {torch} for all: {', '.join(without)} has no NVIDIA driver, though {', '.join(with_driver)} has"
    return None
