"""Takes the place of torch where a job has to be launched and nothing has to be computed."""

from __future__ import annotations

from . import cuda, distributed, version
from .version import __version__

__all__ = ["__version__", "cuda", "distributed", "missing", "version"]


def missing(module: str, name: str) -> AttributeError:
    """The error for a part that only the real torch has."""
    return AttributeError(
        f"{module} has no {name} here: this is the stand-in for torch of ddpctl's tests (tests/lab/stand_in); a test "
        "that needs the real torch uses python213 or torch_site"
    )


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
