"""The types that the shapes are made of: each with bounds, and without values that could do harm later."""

from __future__ import annotations

import ipaddress
import math
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, InstanceOf, TypeAdapter, ValidationError, ValidationInfo

from ddpctl.spec.values import NAME_PATTERN
from ddpctl.transport.limits import DEPTH
from ddpctl_worker.wire import contract

_MOST = 1 << 63
_ACTIVE = (contract.QUEUED, contract.PENDING, contract.STARTING, contract.RUNNING, contract.STOPPING)


def _moment(value: str) -> str:
    if datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is None:
        raise ValueError("a time without a zone")
    return value


def _place(value: str) -> str:
    """Check that a file's name stays below its folder."""
    parts = PurePosixPath(value).parts
    if not parts or "\0" in value or value.startswith("/") or ".." in parts:
        raise ValueError(f"a file named {value[:200]!r} is not taken")
    if any(len(part.encode()) > 250 for part in parts):
        raise ValueError("a file's name is too long")
    return value


def _plain(value: Any, depth: int = DEPTH) -> Any:
    """Check a value that only a check reads: bounded nesting, and numbers that arithmetic survives."""
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it holds a number that is not finite")
    if isinstance(value, int) and abs(value) > _MOST:
        raise ValueError("it holds a number that is too large")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _plain(item, depth - 1)
    return value


def _address(value: str) -> str:
    ipaddress.ip_address(value)
    return value


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, because JSON has only lists."""
    return tuple(value) if isinstance(value, list) else value


def one_of(*words: str) -> str:
    """Return a pattern that matches exactly these words."""
    return f"^(?:{'|'.join(words)})$"


Text = InstanceOf[str]  # unchanged: bytes that are not UTF-8 travel as lone surrogates in JSON
Short = Annotated[Text, Field(max_length=64 << 10)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
Label = Annotated[str, Field(pattern=r"^[!-~]{0,64}$")]
Digits = Annotated[str, Field(pattern=r"^[0-9]{0,9}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
File = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]{1,4000}$")]
IP = Annotated[str, AfterValidator(_address)]
Place = Annotated[str, Field(max_length=4000), AfterValidator(_place)]
Moment = Annotated[str, AfterValidator(_moment)]
Count = Annotated[int, Field(ge=0, lt=_MOST)]
Whole = Annotated[int, Field(gt=-_MOST, lt=_MOST)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Figure = Whole | Number  # a step stays a whole number
Small = Annotated[int, Field(ge=0, lt=1 << 20)]  # ranks, cores, attempts
Port = Annotated[int, Field(ge=1, le=65535)]
NodeState = Annotated[
    str, Field(pattern=one_of(*_ACTIVE, *sorted(contract.TERMINAL), contract.UNREACHABLE, contract.STALE))
]
Plain = Annotated[Any, AfterValidator(_plain)]


def asked(info: ValidationInfo) -> Mapping[str, Any]:
    """Return the arguments of the call that the host answers."""
    found: Mapping[str, Any] = (info.context or {})["args"]
    return found


def own_name(value: str, info: ValidationInfo) -> str:
    """Check that a node reports about itself."""
    if value != (info.context or {})["host"]:
        raise ValueError("it is about another host")
    return value


_made = cache(TypeAdapter[Any])
_making = threading.Lock()


def adapter(shape: Any) -> TypeAdapter[Any]:
    """Return the validator of a shape, made at first use and shared by the threads of all hosts."""
    with _making:
        return _made(shape)


def first_fault(error: ValidationError) -> str:
    """Return the place and the text of the first fault."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:60] for part in fault["loc"])
    what = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
