"""The training programs that ship with ddpctl."""

from __future__ import annotations

from pathlib import Path

import ddpctl


def shipped_jobs() -> Path:
    """Their folder: beside the package where it is installed, in the source tree otherwise.

    Raises:
        FileNotFoundError: this ddpctl came without them.
    """
    package = Path(ddpctl.__file__).parent
    for folder in (package / "jobs", package.parents[1] / "worker" / "jobs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("this ddpctl was installed without its training programs")
