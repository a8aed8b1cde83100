"""A lock as a value: wheels with addresses and hashes, packages to build first, and the text for nodes. Pure."""

from __future__ import annotations

import hashlib
import json
import os.path
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.pylock import (
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ddpctl.environment.origins import without_login
from ddpctl.environment.platforms import Platform
from ddpctl.environment.tools import as_tool
from ddpctl.errors import ProvisionError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass(frozen=True)
class Wheel:
    """A file for a node, usually of a lock: a wheel or a source distribution.

    ``address`` is a URL without login, or a path on the controller.
    """

    name: str  # name of the package, normalized
    version: str
    filename: str
    sha256: str
    address: str = field(repr=False)
    size: int | None = None  # bytes, if the index reports them


@dataclass(frozen=True)
class SourcePackage:
    """A package without a wheel for the target.

    It is built from a ``file`` (source distribution), a ``folder`` of this machine, or a ``git`` repository at a
    commit.
    """

    name: str
    version: str  # empty if only the build knows it
    file: Wheel | None = None
    folder: str = ""
    git: str = ""
    commit: str = ""
    inside: str = ""  # the folder of the package within the source

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True)
class Lock:
    """The exact packages for the nodes of ``target``. A lock can be installed once ``sources`` is empty."""

    target: Platform
    wheels: tuple[Wheel, ...]
    text: str = field(repr=False)  # the whole pylock.toml, without logins
    sources: tuple[SourcePackage, ...] = ()

    @property
    def names(self) -> list[str]:
        return [*(wheel.name for wheel in self.wheels), *(source.name for source in self.sources)]

    def version(self, name: str) -> str | None:
        packages: tuple[Wheel | SourcePackage, ...] = (*self.wheels, *self.sources)
        return next((package.version for package in packages if package.name == name and package.version), None)

    @property
    def pins(self) -> list[str]:
        """``name==version`` of every package that comes from an index."""
        indexed = [source.file for source in self.sources if source.file]
        return [f"{file.name}=={file.version}" for file in (*self.wheels, *indexed)]

    def completed(self, built: Sequence[Wheel]) -> Lock:
        """Return the lock with built wheels instead of the sources; its text names them with their hashes."""
        return replace(self, wheels=(*self.wheels, *built), text=_with_built(self.text, built), sources=())

    @property
    def node_text(self) -> str:
        """The pylock.toml that a node installs from: only wheels, by relative path.

        The same wheels give the same text, whatever their origin.
        """
        lines = [
            'lock-version = "1.0"',
            'created-by = "ddpctl"',
            f'requires-python = "=={self.target.python_version}.*"',
        ]
        if not self.wheels:
            lines.append("packages = []")
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
        """The name of the environment: SHA-256 of ``node_text``."""
        return hashlib.sha256(self.node_text.encode()).hexdigest()

    def request(self, uv: Wheel) -> dict[str, Any]:
        """Return the request to install the lock with ``uv``, which is a wheel or the program itself."""
        return {
            "lock": self.node_text,
            "lock_hash": self.lock_hash,
            "wheels": [{"hash": wheel.sha256, "name": wheel.filename} for wheel in self.wheels],
            "uv": as_tool(uv.sha256, uv.filename),
        }


def read_lock(text: str, target: Platform, source: str) -> Lock:
    """Return the part of a pylock.toml that is for ``target``. ``source`` names the text in messages.

    Its paths must be absolute (``anchored``).

    Raises:
        ProvisionError: the text is not a pylock, or packages have neither a wheel nor a source with a SHA-256.
    """
    try:
        pylock = Pylock.from_dict(tomllib.loads(text))
        chosen = list(pylock.select(environment=target.environment, tags=target.tags))  # type: ignore[arg-type]
    except (PylockValidationError, PylockSelectError, ValueError, KeyError, TypeError) as error:
        raise ProvisionError(f"{source} cannot be used for {target.label}: {error}") from error
    wheels: list[Wheel] = []
    sources: list[SourcePackage] = []
    problems: list[str] = []
    for package, chosen_file in chosen:
        name, version = str(package.name), str(package.version or "")
        if isinstance(chosen_file, PackageDirectory):
            sources.append(SourcePackage(name, version, folder=chosen_file.path, inside=chosen_file.subdirectory or ""))
        elif isinstance(chosen_file, PackageVcs):
            sources.append(_repository(name, version, chosen_file))
        elif (file := _file(name, version, chosen_file, problems)) is None:
            continue
        elif file.filename.endswith(".whl"):
            wheels.append(file)
        else:
            inside = chosen_file.subdirectory if isinstance(chosen_file, PackageArchive) else None
            sources.append(SourcePackage(name, version, file, inside=inside or ""))
    if problems:
        raise ProvisionError(
            f"no usable file (with a SHA-256) for {target.label} of: {', '.join(problems)}",
            hint="choose versions that have one, or add a folder with wheels to environment.find_links",
        )
    return Lock(target, tuple(wheels), text, tuple(sources))


def _repository(name: str, version: str, vcs: PackageVcs) -> SourcePackage:
    if vcs.type != "git":
        raise ProvisionError(
            f"{name} comes from a {vcs.type} repository",
            hint="only git is supported: use a git repository or a package index",
        )
    return SourcePackage(
        name, version, git=vcs.url or vcs.path or "", commit=vcs.commit_id, inside=vcs.subdirectory or ""
    )


def _file(
    name: str, version: str, file: PackageWheel | PackageSdist | PackageArchive, problems: list[str]
) -> Wheel | None:
    sha256 = str(file.hashes.get("sha256", "")).lower()
    address = file.url or file.path or ""
    own_name = None if isinstance(file, PackageArchive) else file.name
    filename = own_name or unquote(urlsplit(address).path).rsplit("/", 1)[-1]
    if len(sha256) != 64 or "/" in filename:
        problems.append(f"{name} {version} ({filename})")
        return None
    if isinstance(file, PackageWheel) or filename.endswith(".whl"):
        try:
            found, wheel_version, _, _ = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            problems.append(f"{name} {version} ({filename!r} is not a valid wheel name)")
            return None
        if found != name:
            problems.append(f"{name} {version} ({filename})")
            return None
        version = version or str(wheel_version)
    return Wheel(name, version, filename, sha256, address, file.size)


_BUILT = "\n[tool.ddpctl.built]\n"


def _with_built(text: str, built: Sequence[Wheel]) -> str:
    """Return a pylock's text with the built wheels, in a table of the tool as PEP 751 has it."""
    rows = "".join(f'"{wheel.name}" = {{ name = "{wheel.filename}", sha256 = "{wheel.sha256}" }}\n' for wheel in built)
    return text.partition(_BUILT)[0] + (_BUILT + rows if rows else "")


def find_built(text: str) -> dict[str, str]:
    """Return package -> SHA-256 of the wheels that were built for a lock."""
    tool = tomllib.loads(text).get("tool", {}).get("ddpctl", {}).get("built", {})
    return {str(canonicalize_name(name)): str(wheel["sha256"]) for name, wheel in tool.items()}


def scrub_logins(text: str, addresses: Sequence[str]) -> str:
    """Return a lock's text without the logins of these addresses."""
    for address in addresses:
        text = text.replace(address, without_login(address))
    return text


def anchor_paths(text: str, folder: PurePath) -> str:
    """Return a lock's text with absolute paths; relative paths count from ``folder``."""
    for path in _values(text, ("path",)):
        absolute = os.path.normpath(str(folder / path))
        text = text.replace(f"path = {json.dumps(path)}", f"path = {json.dumps(absolute)}")
    return text


def addresses_in(text: str) -> list[str]:
    """Return every URL in a pylock's text."""
    return _values(text, ("url", "index"))


def _values(text: str, keys: Sequence[str]) -> list[str]:
    """Return the values of these keys anywhere in a pylock's text, the longest first."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in keys and isinstance(inner, str):
                    found.append(inner)
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(tomllib.loads(text))
    return sorted(set(found), key=len, reverse=True)


def same_versions(locks: Sequence[Lock]) -> list[str]:
    """Return, as sentences, the packages whose public versions differ between locks."""
    problems = []
    for name in sorted({name for lock in locks for name in lock.names}):
        versions = {lock.version(name) for lock in locks} - {None}
        public = {str(version).partition("+")[0] for version in versions}
        if len(public) > 1:
            problems.append(f"{name}: " + ", ".join(f"{lock.version(name)} for {lock.target.label}" for lock in locks))
    return problems
