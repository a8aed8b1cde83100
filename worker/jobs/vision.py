"""torchvision where it can be imported, also beside a torch that it was not built for.

A wheel of torchvision holds native operators for one build of torch. Beside another build they cannot be loaded, and
the import fails on their names: ``operator torchvision::nms does not exist``. The models need none of them, so
declaring the names is enough.
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
    """The module ``torchvision.models``, or None where there is no torchvision that this torch can import."""
    try:
        return importlib.import_module("torchvision.models")
    except ImportError:
        return None
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            return None
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the first attempt left half made
    declare_operators()
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError):
        return None


def declare_operators() -> None:
    """Declares the operators that torchvision's Python code names when it is imported. Calling one still fails."""
    global _library  # the declarations are gone when this object is
    _library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _library.define(schema)


_library: Any = None
