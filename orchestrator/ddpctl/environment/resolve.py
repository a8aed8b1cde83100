"""Makes a lock for each kind of node from the requirements, with uv's resolver, and keeps it.

The same inventory gives the same environment tomorrow; ``--locked`` insists on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import uv

from ddpctl.environment.backend import CPU, candidates, is_build
from ddpctl.environment.limits import RESOLVE_S
from ddpctl.environment.lock import Lock, Wheel, addresses_in, anchor_paths, read_lock, same_versions, scrub_logins
from ddpctl.environment.origins import Origins
from ddpctl.environment.platforms import NodePlatform, Platform, targets
from ddpctl.environment.requirements import metadata_of, read_requirements, refuse_ignored, uv_settings
from ddpctl.environment.tools import own_program, runs_there
from ddpctl.errors import ProvisionError
from ddpctl.files.whole import write_whole
from ddpctl.spec.command import REDACTED
from ddpctl.spec.inventory import Environment, Inventory

_INPUTS = "# inputs: sha256:"
_MADE_FROM = re.compile(re.escape(_INPUTS) + r"([0-9a-f]{64})\n")
_TORCH = "torch"
# Packages that are compiled against a build of torch, so they must come from the same index.
FAMILY = (_TORCH, "torchvision", "torchaudio", "torchtext")
# uv's words for a failed connection, with its chain of causes on one line.
_UNREACHED = re.compile(
    r"Failed to fetch: `?(?P<server>\w+://[^/\s`]+).*client error \(Connect\).*(?:cause:|─▶) (?P<why>.+)$"
)


@dataclass(frozen=True)
class LockRequest:
    """The input of a resolution: requirement lines, a requirements file, or the user's own lock; and a project.

    ``folder`` is the inventory's: uv's settings there apply to ``packages``.
    """

    environment: Environment
    origins: Origins
    folder: Path

    @property
    def pylock(self) -> Path | None:
        """The user's own pylock.toml, if `requirements` names such a file."""
        path = self.environment.requirements
        return Path(path) if path and self.environment.locked else None

    @property
    def place(self) -> Path:
        """The folder in which uv runs, where a user would run it: its paths and uv's settings count."""
        path = self.environment.requirements
        return Path(path).resolve().parent if path else Path(self.environment.project or self.folder)

    def lines(self) -> str:
        """Return the requirement lines for uv, to be used beside the inventory's requirements file."""
        project = self.environment.project
        return "".join(f"{line}\n" for line in (*self.environment.packages, *([_address(project)] if project else ())))

    def inputs(self, target: Platform, backends: Sequence[str]) -> str:
        """Return the SHA-256 of all input on this machine that a lock for ``target`` depends on."""
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
    """Return a project's folder as a requirement.

    Raises:
        ProvisionError: the folder is not a project.
    """
    folder = Path(project).resolve()
    if not any(os.path.isfile(folder / name) for name in ("pyproject.toml", "setup.py")):
        raise ProvisionError(f"{folder} has no pyproject.toml", hint="correct environment.project in the inventory")
    return folder.as_uri()


def resolve_one(request: LockRequest, target: Platform, backends: Sequence[str], pins: Sequence[str] = ()) -> Lock:
    """Return the lock for a kind of node. ``backends`` are tried in order; ``pins`` fix versions."""
    if request.pylock is not None:
        text = read_requirements(str(request.pylock))[0][1]
        text = anchor_paths(scrub_logins(text, addresses_in(text)), request.pylock.resolve().parent)
        return read_lock(text, target, str(request.pylock))
    problem: ProvisionError | None = None
    # The user's own sources come first: if they have the right torch, the index of the torch project need not be asked,
    # and may not even be reachable.
    for backend in (*((None,) if request.origins.own else ()), *backends):
        try:
            lock = _compile(request, target, backend, pins)
        except ProvisionError as error:
            problem = problem or error
            continue
        if (mixed := mixed_builds(lock)) is not None:
            problem = problem or ProvisionError(
                f"builds of torch do not fit each other: {mixed}",
                hint="put all of them into one index, or one folder of environment.find_links",
            )
        elif backend is not None or _torch_fits(lock, backends):
            return lock
    assert problem is not None
    raise problem


def _torch_fits(lock: Lock, backends: Sequence[str]) -> bool:
    """Return whether the resolved torch, if any, is of a build that runs on the nodes."""
    torch = lock.version(_TORCH)
    if torch is None:
        return True
    cuda = [wheel.name for wheel in lock.wheels if wheel.name.startswith("nvidia-") or wheel.name == "cuda-toolkit"]
    return any(is_build(torch, backend, cuda) for backend in backends)


def mixed_builds(lock: Lock) -> str | None:
    """Return a sentence if the torch family comes from several indexes: such builds do not fit each other.

    A server may spread an index over several names (download.pytorch.org, download-r2.pytorch.org).
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
    """Run uv's resolver once."""
    with tempfile.TemporaryDirectory(prefix="ddpctl-lock-") as name:
        folder = Path(name).resolve()  # uv writes paths relative to it
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
        refuse_ignored(_resolved(command, request.place, request.origins), request.environment.requirements)
        text = output.read_text(encoding="utf-8")
        text = anchor_paths(scrub_logins(text, addresses_in(text)), folder)
        return read_lock(text, target, "the resolved lock")


def tool_for(name: str, target: Platform, request: LockRequest, folder: Path) -> Wheel:
    """Return a tool for nodes of ``target``: this machine's own program if it runs there, else the wheel for the nodes.

    ``folder`` keeps a lock for that wheel.

    Raises:
        ProvisionError: the tool is not installed here, or there is no wheel for another machine type.
    """
    if runs_there(target.machine):
        own = own_program(name)
        return Wheel(name, version(name), name, own.sha256, str(own.path), own.size)
    environment = request.environment.model_copy(
        update={"packages": (f"{name}=={version(name)}",), "requirements": None, "project": None, "torch_backend": CPU}
    )
    lock = _tool_lock(replace(request, environment=environment), target, folder / "tools" / name)
    wheel = next((wheel for wheel in lock.wheels if wheel.name == name), None)
    if wheel is None:
        raise ProvisionError(f"there is no wheel of {name} for {target.label}")
    return wheel


def _tool_lock(request: LockRequest, target: Platform, folder: Path) -> Lock:
    """Return the kept lock, or a new lock."""
    path, inputs = _path(folder, target), request.inputs(target, (CPU,))
    kept = _read(path, target, inputs, locked=False)
    if kept is None:
        kept = resolve_one(request, target, (CPU,))
        _write(path, inputs, kept.text)
    return kept


def uv_environment(origins: Origins) -> dict[str, str]:
    """Return the variables for a uv process that looks for packages in ``origins``."""
    env = {name: value for name, value in os.environ.items() if name not in ("UV_TORCH_BACKEND", "UV_PYTHON")}
    return env | origins.uv_env()


def run_program(
    command: Sequence[str], env: Mapping[str, str], timeout: float, folder: Path | None = None, *, merge: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program on this machine, in ``folder``; with ``merge``, stderr goes to stdout.

    Raises:
        subprocess.TimeoutExpired: the program did not end within ``timeout`` seconds.
        OSError: the program could not be started.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def _resolved(command: Sequence[str], folder: Path, origins: Origins) -> str:
    """Run uv and return its stderr."""
    try:
        done = run_program(command, uv_environment(origins), RESOLVE_S, folder)
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(
            f"resolving the packages took longer than {RESOLVE_S:g} s", hint="check the network to the package index"
        ) from error
    if done.returncode != 0:
        raise resolve_error(explain_failure(done.stderr, origins))
    return done.stderr


def resolve_error(said: str) -> ProvisionError:
    """Return the error for uv's explanation: an index that cannot be reached, or packages that do not fit."""
    unreached = _UNREACHED.search(said)
    if unreached is not None:
        return ProvisionError(
            f"the package index {unreached['server']} cannot be reached from this machine: {unreached['why']}",
            hint="check the network, or name an index that can be reached (index_url, find_links) in the inventory",
        )
    return ProvisionError(
        f"the packages cannot be resolved: {said}",
        hint="change environment.packages (or requirements, index_url, find_links) in the inventory",
    )


def explain_failure(text: str, origins: Origins) -> str:
    """Return uv's explanation on one line, without any password."""
    for secret in sorted(origins.secrets(), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = re.sub(r"://[^/@\s]+@", "://", text)
    words = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("warning:")]
    first = next((number for number, word in enumerate(words) if word.startswith(("error:", "×"))), 0)
    return " ".join(words[first:]) or "uv gave no reason"


def backend_note(locks: Mapping[Platform, Lock], platforms: Mapping[str, NodePlatform]) -> str | None:
    """Return a sentence if GPUs stay unused because a node without a driver forces a CPU build."""
    with_driver = [host for host, platform in platforms.items() if platform.driver is not None]
    without = [host for host, platform in platforms.items() if platform.driver is None]
    torch = next((lock.version(_TORCH) for lock in locks.values()), None)
    if torch and with_driver and without and torch.endswith(f"+{CPU}"):
        return f"torch {torch} for all: {', '.join(without)} has no NVIDIA driver, though {', '.join(with_driver)} has"
    return None


# --- locks that are kept ----------------------------------------------------------------------------------------------
def lock_folder(inventory: Inventory, root: Path) -> Path:
    """Return the folder below ``root`` that keeps the locks of an inventory file."""
    place = hashlib.sha256(os.fsencode(Path(inventory.file).resolve())).hexdigest()[:12]
    return root / f"{inventory.cluster}-{place}"


def locks_for(
    request: LockRequest, platforms: Mapping[str, NodePlatform], folder: Path, *, locked: bool
) -> dict[Platform, Lock]:
    """Return a lock for each kind of node: the kept lock if its inputs are unchanged, else a new lock.

    Raises:
        ProvisionError: no packages fit; or, with ``locked``, there is no kept lock or it is out of date.
    """
    backends = candidates(request.environment.torch_backend, platforms.values())
    locks: dict[Platform, Lock] = {}
    for target in targets(platforms):
        inputs = request.inputs(target, backends)
        kept = _read(_path(folder, target), target, inputs, locked)
        if kept is None:
            pins = [pin.partition("+")[0] for lock in list(locks.values())[:1] for pin in lock.pins]
            kept = resolve_one(request, target, backends, pins)
            _write(_path(folder, target), _all_inputs(inputs, kept), kept.text)
        _check(kept, request)
        locks[target] = kept
    different = same_versions(list(locks.values()))
    if different:
        raise ProvisionError(
            f"the nodes cannot get the same versions: {'; '.join(different)}",
            hint="pin versions that have wheels for every platform",
        )
    return locks


def keep_built(folder: Path, lock: Lock) -> None:
    """Keep the lock after its wheels are built, with their hashes; the record of its inputs stays the same."""
    path = _path(folder, lock.target)
    made_from = _MADE_FROM.match(path.read_text(encoding="utf-8"))
    if made_from:
        _write(path, made_from[1], lock.text)


def _path(folder: Path, target: Platform) -> Path:
    return folder / f"pylock.{target.label.replace('.', '_')}.toml"


def _check(lock: Lock, request: LockRequest) -> None:
    """Raise a ProvisionError for a lock that must not be installed."""
    if lock.version("torch") is None:
        raise ProvisionError(
            "the packages do not include torch, which every job needs", hint="add torch to environment.packages"
        )
    if lock.sources and not request.environment.build:
        raise ProvisionError(
            f"environment.build is false, and these have no wheel for {lock.target.label}: "
            + ", ".join(str(source) for source in lock.sources),
            hint="allow it with build: true, choose versions that have wheels, or add a folder with wheels to "
            "environment.find_links",
        )


def _all_inputs(inputs: str, lock: Lock) -> str:
    """Add the metadata of this machine's folders that the lock names."""
    folders = [source.folder for source in lock.sources if source.folder]
    return hashlib.sha256(f"{inputs} {metadata_of(folders)}".encode()).hexdigest() if folders else inputs


def _read(path: Path, target: Platform, inputs: str, locked: bool) -> Lock | None:
    """Return the kept lock if it was made from ``inputs``. Without ``locked`` a damaged lock is a missing lock.

    Raises:
        ProvisionError: ``locked``, and there is no such lock.
    """
    try:
        text = path.read_text(encoding="utf-8")
        made_from = _MADE_FROM.match(text)
        kept = read_lock(text[made_from.end() :], target, str(path)) if made_from else None
    except (OSError, UnicodeDecodeError, ProvisionError) as error:
        if not locked:
            return None
        if isinstance(error, FileNotFoundError):
            raise ProvisionError(f"there is no lock for {target.label} yet", hint="run ddpctl push once") from None
        raise ProvisionError(
            f"the lock for {target.label} cannot be used: {error}",
            hint=f"run ddpctl push without --locked, which makes it again; the lock is {path}",
        ) from error
    if made_from and kept is not None and made_from[1] == _all_inputs(inputs, kept):
        return kept
    if locked:
        raise ProvisionError(
            f"the lock for {target.label} is out of date: environment, platform or package sources have changed since",
            hint=f"run ddpctl push without --locked, or undo the change; the lock is {path}",
        )
    return None


def _write(path: Path, inputs: str, lock: str) -> None:
    """Keep a lock. Only this user may read it, since package sources may be private."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, f"{_INPUTS}{inputs}\n{lock}", private=True)
