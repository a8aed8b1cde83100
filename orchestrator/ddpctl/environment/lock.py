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

import uv

from ddpctl.environment.backend import CPU, is_build
from ddpctl.environment.locked import Lock, addresses_in, read_lock, scrubbed
from ddpctl.environment.origins import Origins
from ddpctl.environment.platforms import NodePlatform, Target
from ddpctl.errors import ProvisionError
from ddpctl.spec.command import REDACTED
from ddpctl.spec.inventory import Environment

RESOLVE_S = 600.0
_TORCH = "torch"
_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """What is wanted: requirement lines, or a file of them, or a lock that somebody made already."""

    environment: Environment
    origins: Origins

    @property
    def pylock(self) -> Path | None:
        """The user's own pylock.toml, where that is what `requirements` names."""
        path = self.environment.requirements
        if path and re.fullmatch(r"pylock(\.[^.]+)?\.toml", Path(path).name):
            return Path(path)
        return None

    def lines(self) -> str:
        """As a requirements file for uv."""
        if self.environment.requirements:
            return f"-r {Path(self.environment.requirements).resolve()}\n"
        return "".join(f"{line}\n" for line in self.environment.packages)

    def inputs(self, target: Target, backends: Sequence[str]) -> str:
        """SHA-256 of everything that a lock for ``target`` depends on and that is written down on this machine."""
        known = {
            "packages": list(self.environment.packages),
            "files": [text for _, text in read_requirements(self.environment.requirements)],
            "origins": list(self.origins.all),
            "target": target.label,
            "backends": list(backends),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def read_requirements(path: str | None) -> list[tuple[str, str]]:
    """(path, text) of a requirements file and of every file that it includes.

    Raises:
        ProvisionError: one of them cannot be read.
    """
    found: list[tuple[str, str]] = []
    waiting = [Path(path)] if path else []
    while waiting:
        file = waiting.pop(0)
        if any(str(file) == known for known, _ in found):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProvisionError(f"cannot read {file}: {error}", hint="see environment.requirements") from error
        found.append((str(file), text))
        if file.suffix != ".toml":
            waiting += [file.parent / name for name in _INCLUDE.findall(text) if "://" not in name]
    return found


def resolve_one(request: Request, target: Target, backends: Sequence[str], pins: Sequence[str] = ()) -> Lock:
    """The lock for one kind of node. ``backends`` are tried in order; ``pins`` hold versions fixed."""
    if request.pylock is not None:
        text = read_requirements(str(request.pylock))[0][1]
        folder = request.pylock.resolve().parent
        return read_lock(scrubbed(text, addresses_in(text)), target, str(request.pylock), folder)
    problem: ProvisionError | None = None
    if request.origins.own:
        # Somebody's own sources come first: where they have the right torch, its project's index need not be asked
        # (and may not even be reachable).
        try:
            lock = _compile(request, target, None, pins)
        except ProvisionError as error:
            problem = error
        else:
            if _torch_fits(lock, backends):
                return lock
    for backend in backends:
        try:
            return _compile(request, target, backend, pins)
        except ProvisionError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _torch_fits(lock: Lock, backends: Sequence[str]) -> bool:
    """The resolved torch, if any, is of one of the builds that run here."""
    version = lock.version(_TORCH)
    if version is None:
        return True
    cuda = [wheel.name for wheel in lock.wheels if wheel.name.startswith("nvidia-") or wheel.name == "cuda-toolkit"]
    return any(is_build(version, backend, cuda) for backend in backends)


def _compile(request: Request, target: Target, backend: str | None, pins: Sequence[str]) -> Lock:
    """One run of uv's resolver."""
    with tempfile.TemporaryDirectory(prefix="ddpctl-lock-") as name:
        folder = Path(name)
        (folder / "requirements.in").write_text(request.lines(), encoding="utf-8")
        (folder / "constraints.txt").write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        command = [uv.find_uv_bin(), "pip", "compile", "requirements.in", "--constraints", "constraints.txt"]
        command += ["--format", "pylock.toml", "--output-file", "pylock.toml", "--no-header", "--no-annotate"]
        command += ["--python", sys.executable, "--python-version", target.python_version]
        command += ["--python-platform", target.uv_platform]
        command += ["--only-binary", ":all:", "--no-sources", "--quiet", "--color", "never"]
        if request.origins.no_index:
            command += ["--no-index"]
        if backend is not None:
            command += ["--torch-backend", backend]
        _run(command, folder, request.origins)
        text = (folder / "pylock.toml").read_text(encoding="utf-8")
    text = scrubbed(text, addresses_in(text))
    return read_lock(text, target, "the resolved lock")


def _run(command: Sequence[str], folder: Path, origins: Origins) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("UV_TORCH_BACKEND", "UV_PYTHON")}
    env.update(origins.uv_env())
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
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


def explanation(text: str, origins: Origins) -> str:
    """uv's own words on one line, without any password."""
    for secret in sorted(origins.secrets(), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = re.sub(r"://[^/@\s]+@", "://", text)
    words = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("warning:")]
    return " ".join(words) or "uv gave no reason"


def backend_note(locks: Mapping[Target, Lock], platforms: Mapping[str, NodePlatform]) -> str | None:
    """A sentence when GPUs will stay unused, because some node cannot run what the others could."""
    with_driver = [host for host, platform in platforms.items() if platform.driver is not None]
    without = [host for host, platform in platforms.items() if platform.driver is None]
    torch = next((lock.version(_TORCH) for lock in locks.values()), None)
    if torch and with_driver and without and torch.endswith(f"+{CPU}"):
        return f"torch {torch} for all: {', '.join(without)} has no NVIDIA driver, though {', '.join(with_driver)} has"
    return None
