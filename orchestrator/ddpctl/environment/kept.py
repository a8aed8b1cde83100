"""Locks that are kept: the same inventory gives the same environment tomorrow, and ``--locked`` insists on it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ddpctl.environment.backend import candidates
from ddpctl.environment.lock import Request, resolve_one
from ddpctl.environment.locked import Lock, read_lock, same_versions
from ddpctl.environment.platforms import NodePlatform, Target, targets
from ddpctl.errors import ProvisionError
from ddpctl.spec.inventory import Inventory

_INPUTS = "# inputs: sha256:"


def lock_folder(inventory: Inventory, root: Path) -> Path:
    """Where the locks of an inventory file are kept, below ``root``."""
    place = hashlib.sha256(str(Path(inventory.file).resolve()).encode()).hexdigest()[:12]
    return root / f"{inventory.cluster}-{place}"


def locks_for(
    request: Request, platforms: Mapping[str, NodePlatform], folder: Path, *, locked: bool
) -> dict[Target, Lock]:
    """A lock for each kind of node: the kept one while nothing that it was made from has changed, else a new one.

    Raises:
        ProvisionError: nothing fits, or with ``locked`` there is no kept lock or it is out of date.
    """
    backends = candidates(request.environment.torch_backend, platforms.values())
    locks: dict[Target, Lock] = {}
    for target in targets(platforms):
        path = folder / f"pylock.{target.label.replace('.', '_')}.toml"
        inputs = request.inputs(target, backends)
        kept = _read(path, target, inputs, locked)
        if kept is None:
            pins = [pin.partition("+")[0] for lock in list(locks.values())[:1] for pin in lock.pins]
            kept = resolve_one(request, target, backends, pins)
            _write(path, inputs, kept)
        locks[target] = kept
    different = same_versions(list(locks.values()))
    if different:
        raise ProvisionError(
            f"the nodes cannot get the same versions: {'; '.join(different)}",
            hint="pin versions that have wheels for every platform",
        )
    return locks


def _read(path: Path, target: Target, inputs: str, locked: bool) -> Lock | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if locked:
            raise ProvisionError(f"there is no lock for {target.label} yet", hint="run ddpctl push once") from None
        return None
    made_from = re.match(re.escape(_INPUTS) + r"([0-9a-f]{64})\n", text)
    if made_from and made_from[1] == inputs:
        return read_lock(text, target, str(path))
    if locked:
        raise ProvisionError(
            f"the lock for {target.label} is out of date: environment, platform or package sources have changed since",
            hint=f"run ddpctl push without --locked, or take back the change; the lock is {path}",
        )
    return None


def _write(path: Path, inputs: str, lock: Lock) -> None:
    """Aside and renamed, for this user alone: package sources may be nobody else's business."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    part.write_text(f"{_INPUTS}{inputs}\n{lock.text}", encoding="utf-8")
    part.replace(path)
