"""Locks that are kept: the same inventory gives the same environment tomorrow, and ``--locked`` insists on it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ddpctl.environment.backend import candidates
from ddpctl.environment.lock import LockRequest, resolve_one
from ddpctl.environment.locked import Lock, read_lock, same_versions
from ddpctl.environment.platforms import NodePlatform, Platform, targets
from ddpctl.environment.requirements import metadata_of
from ddpctl.errors import ProvisionError
from ddpctl.spec.inventory import Inventory

_INPUTS = "# inputs: sha256:"
_MADE_FROM = re.compile(re.escape(_INPUTS) + r"([0-9a-f]{64})\n")


def lock_folder(inventory: Inventory, root: Path) -> Path:
    """Where the locks of an inventory file are kept, below ``root``."""
    place = hashlib.sha256(str(Path(inventory.file).resolve()).encode()).hexdigest()[:12]
    return root / f"{inventory.cluster}-{place}"


def locks_for(
    request: LockRequest, platforms: Mapping[str, NodePlatform], folder: Path, *, locked: bool
) -> dict[Platform, Lock]:
    """A lock for each kind of node: the kept one while nothing that it was made from has changed, else a new one.

    Raises:
        ProvisionError: nothing fits, or with ``locked`` there is no kept lock or it is out of date.
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
    """The lock once its wheels are built, with their hashes: what it was made from stays the same."""
    path = _path(folder, lock.target)
    made_from = _MADE_FROM.match(path.read_text(encoding="utf-8"))
    if made_from:
        _write(path, made_from[1], lock.text)


def _path(folder: Path, target: Platform) -> Path:
    return folder / f"pylock.{target.label.replace('.', '_')}.toml"


def _check(lock: Lock, request: LockRequest) -> None:
    """Raises ProvisionError for a lock that nothing may be installed from."""
    if lock.version("torch") is None:
        raise ProvisionError(
            "the packages do not include torch, and no job runs without it", hint="add torch to environment.packages"
        )
    if lock.sources and not request.environment.build:
        raise ProvisionError(
            f"environment.build is false, and these have no wheel for {lock.target.label}: "
            + ", ".join(str(source) for source in lock.sources),
            hint="allow it with build: true, choose versions that have wheels, or add a folder with wheels to "
            "environment.find_links",
        )


def _all_inputs(inputs: str, lock: Lock) -> str:
    """With what the folders of this machine that the lock names say of themselves."""
    folders = [source.folder for source in lock.sources if source.folder]
    return hashlib.sha256(f"{inputs} {metadata_of(folders)}".encode()).hexdigest() if folders else inputs


def _read(path: Path, target: Platform, inputs: str, locked: bool) -> Lock | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if locked:
            raise ProvisionError(f"there is no lock for {target.label} yet", hint="run ddpctl push once") from None
        return None
    made_from = _MADE_FROM.match(text)
    if made_from:
        kept = read_lock(text[made_from.end() :], target, str(path))
        if made_from[1] == _all_inputs(inputs, kept):
            return kept
    if locked:
        raise ProvisionError(
            f"the lock for {target.label} is out of date: environment, platform or package sources have changed since",
            hint=f"run ddpctl push without --locked, or undo the change; the lock is {path}",
        )
    return None


def _write(path: Path, inputs: str, lock: str) -> None:
    """Aside and renamed, for this user alone: package sources may be nobody else's business."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    part.write_text(f"{_INPUTS}{inputs}\n{lock}", encoding="utf-8")
    part.replace(path)
