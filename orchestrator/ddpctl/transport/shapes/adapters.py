"""Validators by shape, and the context of an answer: the host that sent it and the call that it answers.

A shape is a value of spec/, or a dict with the fields of a TypedDict.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError, ValidationInfo
from typing_extensions import TypedDict


def shape_of(**fields: Any) -> Any:
    """Return the shape of a JSON object with these fields. ``NotRequired`` marks a field that may be missing."""
    return TypedDict("Object", fields)  # type: ignore[operator]


_made = cache(TypeAdapter[Any])
_making = threading.Lock()


def adapter(shape: Any) -> TypeAdapter[Any]:
    """Return the validator of a shape, made at first use and shared by the threads of all hosts."""
    with _making:
        return _made(shape)


def asked(info: ValidationInfo) -> Mapping[str, Any]:
    """Return the arguments of the call that the host answers."""
    found: Mapping[str, Any] = (info.context or {})["args"]
    return found


def own_name(value: str, info: ValidationInfo) -> str:
    """Check that a node reports about itself."""
    if value != (info.context or {})["host"]:
        raise ValueError("it is about another host")
    return value


def first_fault(error: ValidationError) -> str:
    """Return the place and the text of the first fault."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:60] for part in fault["loc"])
    what = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
