"""The compared tools: the command of each for the same training on the same hosts, and its requirements there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import training
from tests.bench.usage import DDPCTL
from tests.lab import Lab, interpreters
from tests.lab.disk import CHECKOUT

PORT = 29517
RANKS = 2  # on each host
DESK = "desk"  # what the hosts call this machine
# What a careful person types: each line says its host, Ctrl-C ends all connections, any failure counts.
BY_HAND = """\
set -o pipefail
trap 'kill $(jobs -p)' INT TERM
rank=0
for host in {names}; do
  ssh $host "cd {place} && {torchrun} --nnodes {nodes} --node_rank $rank --nproc_per_node {ranks} \
--master_addr {master} --master_port {port} training.py" 2>&1 | sed -u "s/^/$host: /" &
  pids="$pids $!"
  rank=$((rank + 1))
done
code=0
for pid in $pids; do wait $pid || code=1; done
exit $code
"""
TORCHRUNX = """\
import torchrunx, training
launcher = torchrunx.Launcher(hostnames={hosts!r}, workers_per_host={ranks}, backend="gloo", ssh_config_file={config!r})
launcher.run(training.main)
"""


@dataclass(frozen=True)
class Desk:
    """This machine as its user has it: a home with a key, a folder with the training, programs on the PATH."""

    lab: Lab
    folder: Path

    @property
    def home(self) -> Path:
        return self.lab.home("peers")

    @property
    def place(self) -> Path:
        """The same path on this machine and on every host, as the peers want it."""
        return self.folder / "project"

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.lab]

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.lab]

    def set_up(self) -> None:
        """The code on all hosts, this machine known to them by a name and they to it, by address or name."""
        text = Path(training.__file__).read_text()
        self.place.mkdir(parents=True)
        (self.place / "training.py").write_text(text)
        known = f"{self.lab.switch.address(0, 1)} {DESK}\n"
        for host in self.lab:
            host.write(str(self.place / "training.py"), text)
            host.hosts_file(host.read("/etc/hosts") + known)
        hosts = "".join(f"{one.address} {one.name}\n" for one in self.lab)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}{hosts}")
        config = self.home / ".ssh" / "config"
        config.write_text(config.read_text().replace("Host node*", f"Host node* {' '.join(self.addresses)}"))
        self._own_ssh()

    def _own_ssh(self) -> None:
        """ssh reads the configuration of the home that the password database names, whatever HOME is."""
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.home}/.ssh/config "$@"\n')
        ssh.chmod(0o755)

    def environ(self, *programs: Path) -> dict[str, str]:
        path = ":".join(map(str, [*programs, self.folder / "bin", "/usr/bin", "/bin"]))
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "NO_COLOR": "1"}

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command with a name of this machine and an /etc/hosts of its own. The pid stays that of the command."""
        line = f'hostname {DESK} && mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return ["unshare", "--mount", "--uts", "sh", "-c", line, "sh", *command]


@dataclass(frozen=True)
class Tool:
    """A way to start the job. ``setup`` names its environment in tests/setup.

    ``to_stop``: what is typed besides where Ctrl-C is to end the job. `up` would ask; without a terminal it detaches.
    """

    key: str
    title: str
    command: Callable[[Desk], Sequence[str]]
    setup: str = ""
    to_stop: Sequence[str] = ()

    def programs(self) -> list[Path]:
        """Folders for the PATH; raises with the reason where the tool cannot be had here."""
        torch = interpreters.python213().parent
        if not self.setup:
            return [torch]
        made = subprocess.run([CHECKOUT / "tests" / "setup" / "peer", self.setup], capture_output=True, text=True)
        if made.returncode:
            raise Unavailable((made.stderr.strip().splitlines() or ["no reason given"])[-1])
        return [Path(made.stdout.strip(), "bin"), torch]


class Unavailable(Exception):
    """Why a tool cannot be installed or run here."""


def by_ddpctl(desk: Desk) -> Sequence[str]:
    job = {"script": "training.py", "nproc_per_node": RANKS, "master_port": PORT}
    defaults = {"python": str(interpreters.python213())}
    desk.lab.inventory(desk.place / "inventory.yaml", defaults=defaults, jobs={"train": job})
    return [str(DDPCTL), "up"]


def by_hand(desk: Desk) -> Sequence[str]:
    words: Mapping[str, object] = {
        "names": " ".join(desk.names),
        "place": desk.place,
        "torchrun": interpreters.python213().parent / "torchrun",
        "nodes": len(desk.names),
        "ranks": RANKS,
        "master": desk.addresses[0],
        "port": PORT,
    }
    script = desk.folder / "by-hand.sh"
    script.write_text(BY_HAND.format(**words))
    return ["bash", str(script)]


def by_deepspeed(desk: Desk) -> Sequence[str]:
    (desk.place / "hostfile").write_text("".join(f"{name} slots={RANKS}\n" for name in desk.names))
    where = ["--master_addr", desk.addresses[0], "--master_port", str(PORT)]
    return ["deepspeed", "--hostfile", "hostfile", *where, "training.py"]


def by_torchrunx(desk: Desk) -> Sequence[str]:
    """It wants addresses."""
    config = str(desk.home / ".ssh" / "config")
    text = TORCHRUNX.format(hosts=desk.addresses, ranks=RANKS, config=config)
    (desk.place / "start.py").write_text(text)
    return ["python", "start.py"]


def by_colossalai(desk: Desk) -> Sequence[str]:
    (desk.place / "hostfile").write_text("".join(f"{name}\n" for name in desk.names))
    where = ["--master_addr", desk.addresses[0], "--master_port", str(PORT)]
    return ["colossalai", "run", "--nproc_per_node", str(RANKS), "--hostfile", "hostfile", *where, "training.py"]


TOOLS = (
    Tool("ddpctl", "ddpctl", by_ddpctl, to_stop=("--on-interrupt", "kill")),
    Tool("torchrun", "ssh and torchrun", by_hand),
    Tool("deepspeed", "DeepSpeed 0.19.8", by_deepspeed, "deepspeed"),
    Tool("torchrunx", "torchrunx 0.4.0", by_torchrunx, "torchrunx"),
    Tool("colossalai", "ColossalAI 0.5.0", by_colossalai, "colossalai"),
)
