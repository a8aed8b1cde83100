"""The types of the fields that a node fills: each strict by itself, with bounds, and without harmful values.

A JSON object becomes a dataclass or a dict, an array a tuple or a list. Any other conversion is refused.
"""

from __future__ import annotations

import ipaddress
import math
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, InstanceOf, Strict

from ddpctl.spec.limits import DEPTH
from ddpctl.spec.values import NAME_PATTERN
from ddpctl_worker.wire import contract

_MOST = 1 << 63


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


def one_of(*words: str) -> str:
    """Return a pattern that matches exactly these words."""
    return f"^(?:{'|'.join(words)})$"


Flag = Annotated[bool, Strict()]
Integer = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Unicode = Annotated[str, Strict()]
Text = InstanceOf[str]  # unchanged: bytes that are not UTF-8 travel as lone surrogates in JSON
Short = Annotated[Text, Field(max_length=64 << 10)]
Name = Annotated[Unicode, Field(pattern=f"^{NAME_PATTERN}$")]
Label = Annotated[Unicode, Field(pattern=r"^[!-~]{0,64}$")]
Digits = Annotated[Unicode, Field(pattern=r"^[0-9]{0,9}$")]
Hash = Annotated[Unicode, Field(pattern=r"^[0-9a-f]{64}$")]
File = Annotated[Unicode, Field(pattern=r"^/[^\x00-\x1f]{1,4000}$")]
IP = Annotated[Unicode, AfterValidator(_address)]
Place = Annotated[Unicode, Field(max_length=4000), AfterValidator(_place)]
Moment = Annotated[Unicode, AfterValidator(_moment)]
Count = Annotated[Integer, Field(ge=0, lt=_MOST)]
Whole = Annotated[Integer, Field(gt=-_MOST, lt=_MOST)]
Number = Annotated[Real, Field(ge=-1e300, le=1e300)]
Figure = Whole | Number  # a step stays a whole number
Small = Annotated[Integer, Field(ge=0, lt=1 << 20)]  # ranks, cores, attempts
Rate = Annotated[Real, Field(ge=0, le=1e12)]
LinkStatus = Annotated[Unicode, Field(pattern="^[a-z_]{1,20}$")]
Percent = Annotated[Real, Field(ge=0, le=100)]
Celsius = Annotated[Real, Field(ge=-300, le=1e4)]
Port = Annotated[Integer, Field(ge=1, le=65535)]
NodeState = Annotated[
    Unicode,
    Field(pattern=one_of(*sorted(contract.ACTIVE | contract.TERMINAL | contract.NODE_ONLY))),
]
Plain = Annotated[Any, AfterValidator(_plain)]
