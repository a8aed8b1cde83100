"""What an inventory runs on this machine, which a notice names at the first use of an inventory of its folder.

An inventory may come with a repository of another person. The folders that a notice has named are remembered in the
state directory: an empty file for each folder and kind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ddpctl.files.limits import SSH_CONFIG_BYTES
from ddpctl.files.records import state_dir
from ddpctl.spec.inventory import Inventory

# Keys of a job with programs that run beside it.
_AROUND = ("before", "after", "notify")
# Lines of an ssh_config that name a program or a library for this machine, or another file with such lines.
_PROGRAMS = re.compile(
    r"^\s*\"?(ProxyCommand|KnownHostsCommand|LocalCommand|PKCS11Provider|SecurityKeyProvider|Include|Match(?=.*\bexec\b))\b",
    re.IGNORECASE | re.MULTILINE,
)


def take_new_programs(inventory: Inventory) -> list[str]:
    """Return what the inventory runs on this machine, in words, as far as no earlier call returned it for its folder.

    Where the state directory cannot be written, each call returns all.
    """
    folder = Path(inventory.file).resolve().parent
    return [words for kind, words in _programs(inventory) if _is_first(folder, kind)]


def _programs(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """Yield (kind, words)."""
    if any(host.local for host in inventory.hosts):
        yield "local", "jobs (`connection: local`)"
        jobs = inventory.jobs.values()
        yield from ((key, f"their `{key}`") for key in _AROUND if any(getattr(job, key) for job in jobs))
    found = _options_with_programs(inventory)
    if found:
        yield "ssh_config", f"programs that {inventory.ssh_config} names ({', '.join(found)})"
    environment = inventory.environment
    if environment.mode == "managed" and environment.project and environment.build:
        yield "project", f"the build of the package in {environment.project}"


def _options_with_programs(inventory: Inventory) -> list[str]:
    """Return the options of the inventory's own ssh_config that run programs. The user's ssh_config is not its own."""
    if inventory.ssh_config is None or Path(inventory.ssh_config).resolve().is_relative_to(Path.home() / ".ssh"):
        return []
    try:
        with Path(inventory.ssh_config).open("rb") as file:
            text = file.read(SSH_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return []  # reported by the code that reads it
    return sorted({match[1] for match in _PROGRAMS.finditer(text)}, key=str.lower)


def _is_first(folder: Path, kind: str) -> bool:
    """Return whether no process has asked this before; of simultaneous processes only one is the first."""
    place = state_dir() / "first_use"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place / f"{hashlib.sha256(bytes(folder)).hexdigest()[:32]}.{kind}").touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass
    return True
