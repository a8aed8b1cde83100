"""Makes the folders that a job's ``outputs`` name, before its script starts: the script may rely on them."""

from __future__ import annotations

import os
from typing import Iterable, Optional

_PATTERN = frozenset("*?[")


def make_output_folders(outputs: Iterable[str], cwd: str) -> Optional[str]:
    """Make the missing folders below ``cwd``; return why a folder could not be made, or ``None``."""
    for folder in filter(None, map(folder_of_output, outputs)):
        target = os.path.join(cwd, folder)
        if os.path.lexists(target):  # a file is the script's own affair
            continue
        try:
            os.makedirs(target)
        except OSError as error:
            return "the folder %s of outputs could not be made: %s" % (target, error.strerror or error)
    return None


def folder_of_output(output: str) -> str:
    """Return the folder of an output below the working folder.

    ``saved`` for saved, saved/, saved/*.pt and saved/model.pt; empty for model.pt, *.pt, and paths outside. A last part
    with a dot in it is a file, unless a slash follows. A last part without a dot is a folder, as in the usual
    ``outputs: [saved_models]``: torch.save makes no folder, so the script would fail at its first save only. A pattern
    such as ``mode[l]`` stands for a file without a dot.
    """
    parts = output.split("/")
    if ".." in parts or not parts[0] or parts[0].startswith(("~", "{")):
        return ""
    first = next((at for at, part in enumerate(parts) if _PATTERN & set(part)), len(parts))
    if first == len(parts) and "." in parts[-1].lstrip("."):
        first -= 1
    return "/".join(part for part in parts[:first] if part not in ("", "."))
