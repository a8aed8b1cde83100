"""A job that is stopped with ``kill --save`` and started again, as often as wanted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpctl_worker.machine.proc import catches
from tests.e2e.site import SMALL_NETWORK, SMALL_SET, until
from tests.lab.command import Ddpctl
from tests.lab.disk import CHECKOUT
from tests.lab.process import Process, read_processes

UP_S, END_S, LOADERS_S, LEFT_S = 120.0, 180.0, 60.0, 10.0
LONGEST_PAUSE_S = 4.0

# As a training is: steps, data loaders that would die of the signal, a checkpoint of rank 0 at the end of a step.
SCRIPT = """\
import json, os, signal, time
path = os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "state.json_step")
for _ in range(2):
    if os.fork() == 0:
        while os.getppid() != 1:
            time.sleep(0.05)
        os._exit(0)
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
step = json.load(open(path))["at"] if os.path.exists(path) else 0
print("resumed", step, flush=True)
while True:
    time.sleep(0.01)
    step += 1
    if asked and os.environ["RANK"] == "0":
        asked.clear()
        with open(path + ".part", "w") as file:
            json.dump({"at": step, "weights": "w" * 100000}, file)
            os.fsync(file.fileno())
        os.replace(path + ".part", path)
"""


# Stands in for torch's launcher, which takes seconds to import: it lies in the code folder, so Python finds it first.
LAUNCHER = """\
import os, signal, subprocess, sys
words = sys.argv[1:]
options, program = words[: words.index("--")], words[words.index("--") + 1 :]
rank = options[options.index("--node_rank") + 1]
env = dict(os.environ, RANK=rank, LOCAL_RANK="0", WORLD_SIZE="2")
child = subprocess.Popen([os.environ["PYTHON_EXEC"], "-u", *program], env=env, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait() and 1)
"""


@dataclass(frozen=True)
class Kind:
    """A program: how its job is made, how it reports the resumed step, and the content of its checkpoint."""

    job: Callable[[Path], dict[str, Any]]
    resumed: str  # a pattern; its groups are the numbers of `read`
    checkpoint: str
    read: Callable[[Path], tuple[int, ...]]


@dataclass
class Stop:
    """A stop and the start after it."""

    pause: float
    loaders: int = 0
    saved: str | None = None
    at: tuple[int, ...] = ()
    resumed: tuple[int, ...] | None = None
    save_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        word = "WRONG" if self.wrong else "right"
        row = f"{word} after {self.pause:.1f} s, {self.loaders} loaders, {self.saved} at {self.at}, {self.save_s:.1f} s"
        return "\n".join([row, *(f"       {text}" for text in self.wrong)])


def campaign(folder: Path, kind: Kind, seed: int, number: int) -> Iterator[Stop]:
    """Each stop, once the run after it has resumed."""
    dice = random.Random(seed)
    with Bench(folder, kind) as bench:
        run = bench.up()
        bench.wait_for_resumed()
        for _ in range(number):
            stop = Stop(dice.uniform(0.0, LONGEST_PAUSE_S))
            before = bench.resumed
            run = bench.stop_and_start(stop, run)
            if stop.at <= before:
                stop.wrong.append(f"saved at {stop.at}, no step after {before}")
            yield stop


class Bench:
    """Two nodes on this machine, the job, and the installed command."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind, self.base = kind, folder / "base"
        (folder / "work").mkdir(parents=True)
        (folder / "ddpctl").mkdir()
        host = {"connection": "local", "python": sys.executable, "slots": 1, "base_dir": str(self.base)}
        self.inventory = folder / "work" / "inventory.yaml"
        hosts = [{"name": name, "fabric_address": "127.0.0.1", **host} for name in ("a", "b")]
        jobs = {"train": kind.job(folder / "work")}
        self.inventory.write_text(json.dumps({"cluster": "here", "hosts": hosts, "jobs": jobs}))
        self.ddpctl = Ddpctl(folder / "ddpctl")
        self.resumed: tuple[int, ...] = ()
        self.run = ""

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        if self.run:
            self.ddpctl("kill", self.run, inventory=self.inventory, timeout=END_S)
        self.ddpctl.stop()

    def up(self) -> str:
        """Start it; the run's id."""
        done = self.ddpctl(
            "up", "--job", "train", "-d", "--json", "--skip-preflight", inventory=self.inventory, timeout=UP_S
        )
        self.run = str(done.ok().json()["run"])
        return self.run

    def wait_for_resumed(self) -> tuple[int, ...]:
        """Where it says that it continues; () for nothing to resume."""
        follow = self.ddpctl.start("tail", self.run, "-f", "-n", "all", "--rank", "0", inventory=self.inventory)
        try:
            match = follow.wait_for(f"{self.kind.resumed}|no checkpoint", UP_S)
        finally:
            follow.kill()
        self.resumed = tuple(int(group or 0) for group in match.groups()) if match[1] else ()
        return self.resumed

    def stop_and_start(self, stop: Stop, run: str) -> str:
        """Stop it at some moment while its data loaders run, look at what was saved, and start it again."""
        wait_for_loaders(run)
        time.sleep(stop.pause)
        stop.loaders = len(loaders(run))
        done = self.ddpctl("kill", run, "--save", "--json", inventory=self.inventory, timeout=END_S)
        stop.save_s = done.seconds
        if done.rc:
            stop.wrong.append(f"`ddpctl kill --save` ended with {done.rc}: {done.stderr.strip()[-500:]}")
        else:
            stop.saved = done.json()["saved"]
        if stop.saved is None:
            stop.wrong.append(f"nothing was saved: {done.stderr.strip()[-500:]}")
        if left := left_of(run):
            stop.wrong.append(f"left running: {[one.argv for one in left]}")
        stop.at = self.check_checkpoint(stop)
        again = self.up()
        stop.resumed = self.wait_for_resumed()
        if stop.resumed != stop.at:
            stop.wrong.append(f"saved at {stop.at}, resumed at {stop.resumed}")
        return again

    def check_checkpoint(self, stop: Stop) -> tuple[int, ...]:
        """Where it was saved: complete, and as its manifest says."""
        folder = self.base / "checkpoints" / "here" / "work" / "train" / "a"
        path = folder / self.kind.checkpoint
        try:
            manifest = json.loads((folder / ".ddpctl" / f"{self.kind.checkpoint}.json").read_text())
            if manifest["files"][""]["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
                stop.wrong.append(f"{path} is not what its manifest says")
            return self.kind.read(path)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            stop.wrong.append(f"{path} cannot be read: {error!r}")
            return ()


def of_run(run: str) -> list[Process]:
    """The living processes of a run, and of ddpctl's own for it."""
    found = [one for one in read_processes(Path("/proc")) if one.state not in "ZX"]
    return [one for one in found if one.environ.get("DDPCTL_RUN") == run]


def ranks_of(run: str) -> list[Process]:
    """Its ranks, with their children."""
    return [one for one in of_run(run) if "RANK" in one.environ]


def left_of(run: str) -> list[Process]:
    """What a kill left: a rank at once, or another process after a while, as ddpctl's own may end a little later."""
    if left := ranks_of(run):
        return left
    with contextlib.suppress(AssertionError):
        until(lambda: not of_run(run), LEFT_S)
    return of_run(run)


def wait_for_loaders(run: str) -> None:
    """Until the data loaders of both ranks run and both ranks handle the signal: one may start long after the other."""

    def there() -> bool:
        found = loaders(run)
        parents = {one.ppid for one in found}
        return len(found) >= 4 and len(parents) == 2 and all(catches(pid, signal.SIGUSR1) for pid in parents)

    until(there, LOADERS_S, "no data loaders run")


def loaders(run: str) -> list[Process]:
    """The children of its ranks."""
    found = ranks_of(run)
    pids = {one.pid for one in found}
    return [one for one in found if one.ppid in pids]


def _plain(folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").write_text("")  # else the installed torch would be found first
    (package / "launch.py").write_text(LAUNCHER)
    return {"script": "train.py"}


def _resnet(folder: Path) -> dict[str, Any]:
    for path in (CHECKOUT / "worker" / "jobs").glob("*.py"):
        shutil.copy(path, folder)
    # Long epochs: most stops come in the middle of a save.
    more = ("--num_epochs", "1000000", "--train_size", "9600", "--num_workers", "2", "--resume")
    return {"script": "resnet_ddp.py", "args": [*SMALL_SET, *SMALL_NETWORK, *more], "env": {"OMP_NUM_THREADS": "1"}}


def _read_resnet(path: Path) -> tuple[int, ...]:
    import torch

    state = torch.load(path, weights_only=True)
    return int(state["epoch"]), int(state["images"])


PLAIN = Kind(_plain, r"resumed (\d+)", "state.json_step", lambda path: (int(json.loads(path.read_text())["at"]),))
RESNET = Kind(_resnet, r"resumed \S+ of epoch (\d+)(?: and (\d+) images)?", "resnet_ddp.ckpt", _read_resnet)
