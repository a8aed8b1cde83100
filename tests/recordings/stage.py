"""What a scene has: hosts, a person's home and folder, a terminal there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.site import SMALL_NETWORK, SMALL_SET, ranks, until
from tests.lab import Host, Lab, interpreters
from tests.lab.command import PATH
from tests.lab.disk import CHECKOUT
from tests.recordings.terminal import Terminal

COLLEAGUE = """\
hostname "$1" && mount -t tmpfs tmpfs /home && mkdir -p "$3" && mount --bind "$2" "$3" && cd "$3" || exit
shift 3
exec "$@"
"""


class Stage:
    """``terminal`` is in a folder with `train.py`, a small training that ships with ddpctl."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder / "train"
        self.folder.mkdir()
        self.home = lab.home("ada")
        names = "".join(f"{host.address} {host.name}\n" for host in lab)
        for host in lab:
            host.hosts_file(f"127.0.0.1 localhost\n{names}")  # as on machines that know each other
        self.python = str(interpreters.python213())
        for path in (CHECKOUT / "worker" / "jobs").glob("*.py"):
            shutil.copy(path, self.folder)
        (self.folder / "resnet_ddp.py").rename(self.folder / "train.py")
        self._env = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8", "USER": "ada"}
        self._colleagues = folder / "colleagues"
        self.terminal = Terminal(self.folder, self._env)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self.terminal.close()

    def inventory(self, job: dict[str, Any] | None = None, **keys: Any) -> None:
        """`inventory.yaml`, with every host of the lab and the training."""
        data = {
            "cluster": "lab",
            "hosts": [host.name for host in self.lab],
            "defaults": {"python": self.python},
            "jobs": {"train": {"script": "train.py", "args": [*SMALL_SET, *SMALL_NETWORK], **(job or {})}},
        }
        (self.folder / "inventory.yaml").write_text(json.dumps({**data, **keys}, indent=1))

    def run(self, *args: str) -> str:
        """What a command prints, beside the terminal."""
        command = ["ddpctl", *args]
        done = subprocess.run(command, env=self._env, cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def run_as(self, user: str, machine: str, *args: str) -> str:
        """Return the output of a colleague's command: typed on another machine, in ~/resnet, with the same inventory.

        The command sees that machine's name and home folder in namespaces of its own.
        """
        code = self._colleagues / user
        if not code.exists():
            shutil.copytree(self.folder, code)
        place = f"/home/{user}/resnet"
        inside = ["unshare", "--uts", "--mount", "sh", "-c", COLLEAGUE, "sh", machine, str(code), place]
        env = {**self._env, "USER": user}
        done = subprocess.run([*inside, "ddpctl", *args], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_for_output(self, text: str) -> None:
        until(lambda: text in self.run("tail", "train", "-n", "all"), 200, pause=3)

    def wait_for_end(self) -> None:
        until(lambda: '"ended": null' not in self.run("status", "train", "--json"), 60, pause=1)

    def kill_rank(self, host: Host, run: str) -> None:
        found = until(lambda: ranks(host, run), trouble="no rank")
        host.run(["kill", "-KILL", str(min(found.items())[1].pid)])
