"""Makes paths of this machine absolute: they are relative to the inventory file, and ``~`` is this user's home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Environment, Inventory
from ddpctl.spec.values import Fault, Strict

_HOMELESS = "starts with the home of a user who does not exist"


class _NoHome(Exception):
    """The user of ``~name`` does not exist."""


def resolve(inventory: Inventory, sources: Iterable[int]) -> tuple[Inventory | None, list[Fault]]:
    """Return the inventory with absolute paths, or a fault for every path that cannot be made absolute.

    ``sources`` gives, for each host, the index of its item in ``hosts``. Paths on the nodes (base_dir, workdir, data)
    stay unchanged: only a node can expand its own ``~``.
    """
    folder = Path(inventory.file).parent
    faults: list[Fault] = []
    hosts = []
    for index, host in zip(sources, inventory.hosts, strict=True):
        hosts.append(_host(host, folder, ("hosts", index), faults))
    jobs = {
        name: job.model_copy(update=_paths(job, ("code", "env_file"), folder, ("jobs", name), faults))
        for name, job in inventory.jobs.items()
    }
    top = _paths(inventory, ("ssh_config", "known_hosts"), folder, (), faults)
    environment = _environment(inventory.environment, folder, faults)
    if faults:
        return None, faults
    return inventory.model_copy(update={**top, "hosts": tuple(hosts), "environment": environment, "jobs": jobs}), []


def absolute_path(text: str, folder: Path) -> str:
    """Return ``text`` as an absolute path, relative to ``folder``. Links are not followed."""
    try:
        expanded = Path(text).expanduser()
    except RuntimeError as error:
        raise _NoHome(text) from error
    return str(_normal(folder / expanded))


def _normal(path: Path) -> Path:
    """Resolve ``..`` through the real folders; any other path keeps its links."""
    if ".." not in path.parts:
        return path
    try:
        return path.parent.resolve(strict=True) / path.name if path.name != ".." else path.resolve(strict=True)
    except OSError:
        return path


def _paths(
    model: Strict, keys: Iterable[str], folder: Path, where: tuple[str | int, ...], faults: list[Fault]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in keys:
        value = getattr(model, key)
        if value is None:
            continue
        try:
            found[key] = absolute_path(value, folder)
        except _NoHome:
            faults.append(Fault((*where, key), _HOMELESS))
    return found


def _host(host: Host, folder: Path, where: tuple[str | int, ...], faults: list[Fault]) -> Host:
    update = _paths(host, ("identity_file",), folder, where, faults)
    if host.local and ("/" in host.python or host.python.startswith("~")):
        # Links are not followed: an environment's bin/python is a link to an interpreter outside of the environment.
        update |= _paths(host, ("python",), folder, where, faults)
    elif "/" in host.python and not host.python.startswith(("/", "~/")):
        hint = "write an absolute path, one below ~/, or a bare name such as python3"
        faults.append(Fault((*where, "python"), "is a relative path, which means nothing on another machine", hint))
    if not host.base_dir.startswith(("/", "~/")):
        faults.append(Fault((*where, "base_dir"), "must be absolute or start with ~/"))
    return host.model_copy(update=update)


def _environment(environment: Environment, folder: Path, faults: list[Fault]) -> Environment:
    update: Mapping[str, Any] = _paths(environment, ("requirements", "project"), folder, ("environment",), faults)
    links = []
    for index, link in enumerate(environment.find_links):
        try:
            links.append(link if "://" in link else absolute_path(link, folder))
        except _NoHome:
            faults.append(Fault(("environment", "find_links", index), _HOMELESS))
    return environment.model_copy(update={**update, "find_links": tuple(links)})
