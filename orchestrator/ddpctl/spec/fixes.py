"""Next steps of many hosts put together: none of their commands is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_COMMAND = re.compile(r"`[^`]*`")


def blank(text: str) -> str:
    """``text`` without what is in its commands: by this two steps are alike."""
    return _COMMAND.sub("``", text)


def outside(text: str, change: Callable[[str], str]) -> str:
    """``text`` changed, and its commands as they are."""
    parts = re.split(f"({_COMMAND.pattern})", text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def together(texts: Sequence[str]) -> str | None:
    """One step for all, with every command that one of them has; None where they differ in more than commands."""
    if len({blank(text) for text in texts}) != 1:
        return None
    columns = zip(*(_COMMAND.findall(text) for text in texts), strict=True)
    commands = iter([", ".join(dict.fromkeys(column)) for column in columns])
    return _COMMAND.sub(lambda _found: next(commands), texts[0])
