"""Which modules a text imports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.script import imported_modules


def test_imports_anywhere_count_and_mentions_do_not() -> None:
    text = """import os, torch.nn as nn\n# import scipy\ndef f():\n    from torchvision.models import resnet18\n"""
    assert imported_modules(text) == {"os", "torch", "torchvision"}


def test_a_relative_import_is_no_module() -> None:
    assert imported_modules("from . import x\nfrom .y import z") == frozenset()


def test_python_2_is_searched() -> None:
    assert imported_modules("import torch\nprint 'x'\n") == {"torch"}


@given(st.text())
def test_never_raises(text: str) -> None:
    imported_modules(text)
