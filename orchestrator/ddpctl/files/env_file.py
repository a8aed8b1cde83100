"""Reads a job's ``env_file``: lines of ``NAME=value``. No message and no log ever repeats a value.

Syntax: blank lines, ``#`` comment lines, and an optional ``export`` before the name. Values stand in single quotes
(taken literally), in double quotes (with ``\\n \\t \\" \\\\ \\$``), or bare (blanks around them and a `` #`` comment
after them are dropped). Variables are not expanded, and this process's environment does not change.
"""

from __future__ import annotations

import re
from pathlib import Path

from ddpctl.errors import InventoryError
from ddpctl.files.limits import ENV_FILE_BYTES
from ddpctl.spec.values import LAUNCHER_OWNED, is_env_name

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?")
_COMMENT = re.compile(r"(^|\s)#.*")


def read_env_file(path: Path | str) -> dict[str, str]:
    """Return the names and values of the file.

    Raises:
        InventoryError: the file cannot be read, or a line is not understood; it names the line, never the value.
    """
    file = str(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(ENV_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InventoryError("env_file not found", file=file, hint="create it, or remove env_file") from None
    except OSError as error:
        raise InventoryError(f"the env_file cannot be read: {error.strerror}", file=file) from None
    return parse_env(data, file)


def parse_env(data: bytes, file: str) -> dict[str, str]:
    """Do ``read_env_file`` for bytes."""
    if len(data) > ENV_FILE_BYTES:
        raise InventoryError(f"is longer than {ENV_FILE_BYTES} bytes", file=file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InventoryError("is not UTF-8 text", file=file, line=data.count(b"\n", 0, error.start) + 1) from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, value = _pair(stripped, file, number)
        if name in found:
            raise InventoryError(f"{name} is given twice", file=file, line=number, hint="remove one of the two")
        found[name] = value
    return found


def _pair(line: str, file: str, number: int) -> tuple[str, str]:
    name, equals, rest = line.removeprefix("export ").partition("=")
    name = name.strip()
    if not equals:
        raise InventoryError("the line is not NAME=value", file=file, line=number)
    if not is_env_name(name):
        # The text before '=' may be the tail of a secret of several lines: not repeated either.
        raise InventoryError(
            "the text before '=' is not a name for an environment variable",
            file=file,
            line=number,
            hint="letters, digits and '_', not starting with a digit; a value of several lines cannot be written",
        )
    if name in LAUNCHER_OWNED or name.startswith(("DDPCTL_", "PET_")):
        raise InventoryError(f"{name} is set by the launcher and cannot be chosen here", file=file, line=number)
    value = _value(rest.strip())
    if value is None:
        raise InventoryError(f"the quotes around the value of {name} do not close", file=file, line=number)
    if "\0" in value:
        raise InventoryError(f"the value of {name} holds a NUL character", file=file, line=number)
    return name, value


def _value(text: str) -> str | None:
    """Return the value of a line, or None if its quotes do not close."""
    if text.startswith('"'):
        match = _DOUBLE.fullmatch(text)
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[1]) if match else None
    if text.startswith("'"):
        match = _SINGLE.fullmatch(text)
        return match[1] if match else None
    return _COMMENT.sub("", text).strip()
