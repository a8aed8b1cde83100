"""The inputs of a lock on this machine: requirements files, projects, and uv's settings beside them."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ddpctl.errors import ProvisionError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)", re.MULTILINE)
_IGNORED = re.compile(r"^warning: Ignoring unsupported option in `([^`]+)`: `(-[^`]+)`", re.MULTILINE)
_METADATA = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")


def read_requirements(path: str | None) -> list[tuple[str, str]]:
    """Return (path, text) of a requirements file and of every file that it includes.

    Raises:
        ProvisionError: a file cannot be read.
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


def refuse_ignored(said: str, path: str | None) -> None:
    """Refuse options of a requirements file that uv ignores with only a warning.

    The nodes would miss their effect.

    Raises:
        ProvisionError: an option was ignored; it names the first, with file and line.
    """
    match = _IGNORED.search(said)
    if match is None:
        return
    option = match[2]
    for file, text in read_requirements(path):
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(rf"\s*{re.escape(option)}(?![\w-])", line):
                hint = "remove it, or put what it says into the inventory's environment"
                raise ProvisionError(f"{file}:{number}: uv does not know the option {option}", hint=hint)
    raise ProvisionError(f"{match[1]}: uv does not know the option {option}", hint="remove it")


def uv_settings(folder: Path) -> str:
    """Return uv's own settings for a folder (``uv.toml``, ``[tool.uv]``) as text that changes when they change."""
    for place in (folder, *folder.parents):
        for name in ("uv.toml", "pyproject.toml"):
            file = place / name
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if name == "uv.toml":
                return text
            try:
                tables = tomllib.loads(text)
            except tomllib.TOMLDecodeError:
                return text  # uv reports the fault
            if "uv" in tables.get("tool", {}):
                return repr(tables["tool"]["uv"])
    return ""


def metadata_of(folders: Iterable[str]) -> str:
    """Return the SHA-256 of the files that declare the needs of the projects in these folders."""
    sha = hashlib.sha256()
    for folder in sorted(folders):
        for name in _METADATA:
            try:
                data = (Path(folder) / name).read_bytes()
            except OSError:
                continue
            sha.update(b"%s\0%d\0%s" % (os.fsencode(f"{folder}/{name}"), len(data), data))
    return sha.hexdigest()
