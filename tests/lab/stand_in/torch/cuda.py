"""A build without CUDA."""

from __future__ import annotations


def is_available() -> bool:
    return False


def device_count() -> int:
    return 0


def __getattr__(name: str) -> object:
    from . import missing

    raise missing(__name__, name)
