"""A lock as a value: which wheels, from where, with which hashes; and its text for the node that installs it. Pure."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.pylock import PackageWheel, Pylock
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ddpctl.environment.origins import without_login
from ddpctl.environment.platforms import Target
from ddpctl.errors import ProvisionError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass(frozen=True)
class Wheel:
    """One file of an environment. ``address`` is a URL without login, or a path on the controller."""

    name: str  # of the package, normalized
    version: str
    filename: str
    sha256: str
    address: str = field(repr=False)
    size: int | None = None  # bytes, where the index tells


@dataclass(frozen=True)
class Lock:
    """What exactly is installed on the nodes of ``target``."""

    target: Target
    wheels: tuple[Wheel, ...]
    text: str = field(repr=False)  # the whole pylock.toml, without logins

    def version(self, name: str) -> str | None:
        return next((wheel.version for wheel in self.wheels if wheel.name == name), None)

    @property
    def pins(self) -> list[str]:
        """``name==version`` of every package."""
        return [f"{wheel.name}=={wheel.version}" for wheel in self.wheels]

    @property
    def node_text(self) -> str:
        """The pylock.toml that a node installs from: wheels by relative path, nothing else. The same wheels give the
        same text, wherever they came from."""
        lines = [
            'lock-version = "1.0"',
            'created-by = "ddpctl"',
            f'requires-python = "=={self.target.python_version}.*"',
        ]
        for wheel in sorted(self.wheels, key=lambda wheel: wheel.name):
            lines += [
                "",
                "[[packages]]",
                f'name = "{wheel.name}"',
                f'version = "{wheel.version}"',
                f'wheels = [{{ path = "{wheel.sha256}/{wheel.filename}", hashes = {{ sha256 = "{wheel.sha256}" }} }}]',
            ]
        return "\n".join(lines) + "\n"

    @property
    def lock_hash(self) -> str:
        """Names the environment: SHA-256 of ``node_text``."""
        return hashlib.sha256(self.node_text.encode()).hexdigest()


def read_lock(text: str, target: Target, source: str, folder: PurePath | None = None) -> Lock:
    """The wheels that a pylock.toml has for ``target``. ``source`` names it in messages; paths count from ``folder``.

    Raises:
        ProvisionError: it is no pylock, or a package has no wheel with a SHA-256 for these nodes; all are named.
    """
    try:
        pylock = Pylock.from_dict(tomllib.loads(text))
        chosen = list(pylock.select(environment=target.environment, tags=target.tags))  # type: ignore[arg-type]
    except (tomllib.TOMLDecodeError, ValueError, KeyError, TypeError) as error:
        raise ProvisionError(f"{source} cannot be used for {target.label}: {error}") from error
    wheels, problems = [], []
    for package, file in chosen:
        version = str(package.version or "")
        if not isinstance(file, PackageWheel):
            problems.append(f"{package.name} {version}".strip())
            continue
        wheels.append(_wheel(str(package.name), version, file, folder, problems))
    if problems:
        raise ProvisionError(
            f"no wheel for {target.label} (with a SHA-256) of: {', '.join(problems)}",
            hint="nothing is built on the nodes: choose versions that have wheels, or add a folder with wheels to "
            "environment.find_links",
        )
    return Lock(target, tuple(wheel for wheel in wheels if wheel), text)


def _wheel(name: str, version: str, file: PackageWheel, folder: PurePath | None, problems: list[str]) -> Wheel | None:
    sha256 = str(file.hashes.get("sha256", "")).lower()
    address = file.url or (str(folder / file.path) if folder and file.path else file.path) or ""
    filename = file.name or unquote(urlsplit(address).path).rsplit("/", 1)[-1]
    try:
        found, wheel_version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        problems.append(f"{name} {version} ({filename!r} is no name of a wheel)")
        return None
    if len(sha256) != 64 or found != name:
        problems.append(f"{name} {version} ({filename})")
        return None
    return Wheel(name, version or str(wheel_version), filename, sha256, address, file.size)


def scrubbed(text: str, addresses: Sequence[str]) -> str:
    """A lock's text without the logins of any address in it."""
    for address in addresses:
        text = text.replace(address, without_login(address))
    return text


def addresses_in(text: str) -> list[str]:
    """Every URL in a pylock's text."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in ("url", "index") and isinstance(inner, str):
                    found.append(inner)
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(tomllib.loads(text))
    return sorted(set(found), key=len, reverse=True)


def same_versions(locks: Sequence[Lock]) -> list[str]:
    """Packages whose versions differ between locks (other than by their build), as sentences."""
    problems = []
    for name in sorted({wheel.name for lock in locks for wheel in lock.wheels}):
        versions = {lock.version(name) for lock in locks} - {None}
        public = {str(version).partition("+")[0] for version in versions}
        if len(public) > 1:
            problems.append(f"{name}: " + ", ".join(f"{lock.version(name)} for {lock.target.label}" for lock in locks))
    return problems
