"""Modules that a test file names at its top and that are imported by the first test that needs them.

Collecting the tests of a file imports the file: a torch, a numpy or a scikit-learn there costs every process seconds,
also a process that runs no such test.
"""

from __future__ import annotations

from typing import Any

import pytest


class Lazy:
    """Stands for a module, also where a test patches it. A test that needs a module that is missing is skipped."""

    __slots__ = ("_module",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_module", name)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # monkeypatch reads here the value that it will put back
        return vars(pytest.importorskip(self._module))

    def __getattr__(self, name: str) -> Any:
        # pytest asks each name of a test file whether it is a test or a fixture: __test__, _mock_name, pytestmark.
        if name.startswith(("_", "pytest")) and name != "__version__":
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._module), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(pytest.importorskip(self._module), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(pytest.importorskip(self._module), name)
