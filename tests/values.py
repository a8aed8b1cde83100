"""Values as the answer of a node makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ddpctl.spec.record import RecordedRun
from ddpctl.transport.shapes.adapters import adapter

T = TypeVar("T")


def value_of(kind: type[T], data: Mapping[str, Any]) -> T:
    found: T = adapter(kind).validate_python(data)
    return found


def recorded(**keys: Any) -> RecordedRun:
    """The record of a run of project ``exp``."""
    return value_of(RecordedRun, {"project": "exp", **keys})
