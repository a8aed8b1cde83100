"""torchvision if it can be imported, also beside a torch for which it was not built.

A wheel of torchvision holds native operators for a particular build of torch. Beside another build they cannot be
loaded, and the import fails on their names: ``operator torchvision::nms does not exist``. The models do not need these
operators, so declaring the names is enough.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def torchvision_models() -> Any | None:
    """Return the module ``torchvision.models``, or ``None`` without a torchvision that this torch can import."""
    try:
        return importlib.import_module("torchvision.models")
    except ImportError:
        return None
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            return None
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # left incomplete by the first attempt
    declare_operators()
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError):
        return None


def declare_operators() -> None:
    """Declare the operators that torchvision's Python code names at its import. Calling an operator still fails."""
    global _library  # the declarations last as long as this object
    _library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _library.define(schema)


_library: Any = None
