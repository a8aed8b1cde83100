"""Keys of hosts and clients, made by OpenSSH itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.process import LabError

KEY = "id_ed25519"
HOST_KEY = "ssh_host_ed25519_key"

AGENT_START_S = 60.0
"""An agent answers within milliseconds; a busy machine may take seconds."""


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


@contextmanager
def run_agent(path: Path, *keys: Path) -> Iterator[str]:
    """Run a real `ssh-agent` that holds these keys, listening at `path`; yields the path of its socket."""
    path.unlink(missing_ok=True)
    env = {"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": str(path)}
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + AGENT_START_S
        # The socket's file appears a moment before the agent accepts connections: only an answer counts. `ssh-add -l`
        # ends with 2 as long as it cannot reach an agent.
        while subprocess.run(["ssh-add", "-l"], env=env, capture_output=True).returncode == 2:
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"ssh-agent did not answer at {path}")
            time.sleep(0.02)
        if keys:
            subprocess.run(["ssh-add", "-q", *keys], check=True, env=env, capture_output=True)
        yield str(path)
    finally:
        process.kill()
        process.wait()
