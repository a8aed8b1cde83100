"""Keys of hosts and clients, made by OpenSSH itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.lab.process import LabError

KEY = "id_ed25519"
HOST_KEY = "ssh_host_ed25519_key"


def generate_keys(paths: Iterable[Path]) -> None:
    """Make a key pair at each path, all side by side, in place of what is there."""
    makers = []
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        makers.append(subprocess.Popen(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path]))
    codes = [maker.wait() for maker in makers]
    if any(codes):
        raise LabError("ssh-keygen failed")


def public_key(path: Path) -> str:
    """Type and key, without the comment."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])
