"""A user with a folder of code and an inventory of a lab's hosts; and the jobs, read from the hosts' own /proc."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpctl_worker.checkpoint.limits import FINAL_READ_S
from tests.lab import Host, Lab, Process
from tests.lab.command import Ddpctl, Done, Running
from tests.lab.disk import CHECKOUT
from tests.suite.waiting import poll

SMALL_SET = ("--data_dir", "synthetic", "--train_size", "960", "--test_size", "200")
SMALL_NETWORK = ("--width", "8", "--batch_size", "8", "--learning_rate", "0.02")
# After a run that was not killed, the keepers of its checkpoints wait so long for hosts that they cannot reach.
KEEPERS_END_S = FINAL_READ_S + 15.0
WATCHERS = {"ddpctl-guardian", "ddpctl-super", "ddpctl-standby"}
# In the command lines of ddpctl's own processes. After a kill, or after the last answer to a command, ddpctl waits two
# seconds for their end.
OWN_WORDS = ("ddpctl=json.loads", "ddpctl_worker.machine.child")
OWN_END_S = 10.0


class Site:
    """One place to work from: a home with a key, a folder with code, an inventory. `site("status", "job")` runs."""

    def __init__(self, lab: Lab, ddpctl: Ddpctl, folder: Path, python: str) -> None:
        self.lab = lab
        self.ddpctl = ddpctl
        self.folder = folder
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        # The hosts keep the checkpoints of other tests: each place has jobs of its own.
        self.project = re.sub(r"[^A-Za-z0-9._-]", "-", f"{folder.parent.name}-{folder.name}".lstrip("._-"))[:63]
        self.home = lab.home(re.sub(r"\W", "-", str(folder))[-80:])
        self.python = python
        self.hosts: list[dict[str, Any]] = [{"name": host.name, "address": host.address} for host in lab]
        self.jobs: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, Any] = {"defaults": {"python": python, "slots": 1}}

    @property
    def inventory(self) -> Path:
        """Written anew at each use, so that a test may change `hosts`, `jobs` and `keys` at any time."""
        path = self.folder / "inventory.yaml"
        data = {"cluster": "lab", "project": self.project, **self.keys, "hosts": self.hosts, "jobs": self.jobs}
        whole = path.with_suffix(".new")  # a command that has just started may be reading the file
        whole.write_text(json.dumps(data, indent=1) + "\n")
        whole.replace(path)
        return path

    def only(self, *indices: int) -> Site:
        """The same with some of the hosts."""
        self.hosts = [self.hosts[index] for index in indices]
        return self

    def job(self, name: str, program: str, *args: str, **keys: Any) -> str:
        """A job that runs a program of Python text; returns its name.

        Its checkpoints stay on the hosts' disks under its name: a job that resumes needs a name of no other test.
        """
        script = str(keys.setdefault("script", f"{name}.py"))
        (self.code / script).parent.mkdir(parents=True, exist_ok=True)
        (self.code / script).write_text(program)
        self.jobs[name] = {"code": "code", "args": list(args), **keys}
        return name

    def training(self, name: str, *args: str, **keys: Any) -> str:
        """A job of the training program that ships with ddpctl, on a small synthetic set."""
        for path in (CHECKOUT / "worker" / "jobs").glob("*.py"):
            shutil.copy(path, self.code)
        keys = {"script": "resnet_ddp.py", "code": "code", "env": {"OMP_NUM_THREADS": "1"}, **keys}
        self.jobs[name] = {"args": [*SMALL_SET, *SMALL_NETWORK, *args], **keys}
        return name

    def elsewhere(self, name: str) -> Site:
        """A second place: another home and folder, and of the inventory the project and the hosts alone."""
        other = Site(self.lab, self.ddpctl, self.folder.parent / f"{self.folder.name}-{name}", self.python)
        other.hosts, other.keys, other.project = self.hosts, self.keys, self.project
        return other

    def __call__(self, *args: str, timeout: float = 90, **where: Any) -> Done:
        return self.start(*args, **where).wait(timeout)

    def start(self, *args: str, **where: Any) -> Running:
        where = {"inventory": self.inventory, "home": self.home, "cwd": self.folder, **where}
        return self.ddpctl.start(*args, **where)

    def up(self, job: str, *args: str, timeout: float = 120, **where: Any) -> dict[str, Any]:
        """`up -d --json`: the run's status once every node has confirmed its start."""
        found: dict[str, Any] = self("up", "--job", job, "-d", "--json", *args, timeout=timeout, **where).ok().json()
        return found

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self("status", job, "--json").ok().json()
        return found

    def wait_for_output(self, job: str, pattern: str, *args: str, timeout: float = 90) -> None:
        """Until the run has written this; one command that follows, as asking again and again takes most of a core."""
        follow = self.start("tail", job, "-f", "-n", "all", "--no-fold", *args)
        try:
            follow.wait_for(f"(?s){pattern}", timeout)
        finally:
            follow.kill()

    def checkpoints(self, job: str) -> str:
        """The folder for all checkpoints of a job, on each host."""
        return f"/root/.local/state/ddpctl/checkpoints/lab/{self.project}/{job}"

    def wait_for_copy(self, host: Host, job: str, writer: Host, name: str) -> None:
        """Wait until this host has a copy of another host's checkpoint, with the manifest."""
        path = f"{self.checkpoints(job)}/{writer.name}/.ddpctl/{name}.json"

        def trouble() -> str:
            status = self.status(job)
            log = f"/root/.local/state/ddpctl/runs/{status['run']}/{{}}/supervisor.log"
            logs = (one.run(["cat", log.format(one.name)], check=False).stdout for one in (writer, host))
            return "\n".join((f"{host.name} has no copy of {name}", json.dumps(status), *logs))

        until(lambda: host.exists(path), 150, trouble, pause=0.2)  # over before the test's own time is

    def wait_for_state(self, job: str, *states: str, timeout: float = 120) -> dict[str, Any]:
        """Return the status once the run is in any of these terminal states.

        A command that follows the run ends with it: asking again and again would take most of a core.
        """
        last = self.status(job)

        def there() -> bool:
            last.update(self.status(job))
            return last["state"] in states

        if last["state"] not in states:
            follow = self.start("tail", job, "-f", "-n", "0")
            try:
                until(lambda: follow.process.poll() is not None, timeout, lambda: follow.stderr)
            finally:
                follow.kill()
            until(there, 30, lambda: f"{job} is {last['state']}, never {states}: {json.dumps(last)}", pause=0.3)
        return last


def until(
    done: Callable[[], Any], timeout: float = 30, trouble: Callable[[], str] | str = "", pause: float = 0.05
) -> Any:
    """Return the first true value; fail with the trouble if there is no true value in time."""
    found = poll(done, timeout, pause)
    assert found, f"not within {timeout} s: {trouble if isinstance(trouble, str) else trouble()}"
    return found


def running(host: Host) -> list[Process]:
    """The processes of a host without zombies: nothing but its init and sshd is there before and after a job."""
    return [process for process in host.processes() if process.state not in "ZX"]


def of_run(host: Host, run: str) -> list[Process]:
    """The processes that a run has started there: they carry its id."""
    return [process for process in running(host) if process.environ.get("DDPCTL_RUN") == run]


def ranks(host: Host, run: str) -> dict[int, Process]:
    """The ranks of a run there, without their children."""
    found = [process for process in of_run(host, run) if "RANK" in process.environ]
    pids = {process.pid for process in found}
    return {int(process.environ["RANK"]): process for process in found if process.ppid not in pids}


def launcher(host: Host, run: str) -> Process | None:
    found = [process for process in of_run(host, run) if "RANK" not in process.environ]
    pids = {process.pid for process in found}
    return next((process for process in found if process.ppid not in pids), None)


def pids_of(host: Host, run: str) -> set[tuple[int, int]]:
    """Launcher and ranks, each with its start time."""
    return {(one.pid, one.start) for one in (*ranks(host, run).values(), launcher(host, run)) if one is not None}


def named(host: Host, name: str) -> Process | None:
    """A process by its name as the kernel knows it, such as the supervisor `ddpctl-super`."""
    for process in running(host):
        try:
            comm = (host.proc / str(process.pid) / "comm").read_text().strip()
        except OSError:
            continue
        if comm == name[:15]:
            return process
    return None


@functools.cache  # a look during a cut of the network must be quick
def gang_port(host: Host, run: str, runs: str = "/root/.local/state/ddpctl/runs") -> int:
    """The port of the hub, from the record of the run."""
    record = json.loads(host.read(f"{runs}/{run}/{host.name}/run.json"))
    return int(record["gang"]["port"])


def wait_for_gang(hosts: Sequence[Host], run: str, *runs: str) -> None:
    """Until the nodes watch each other: each member has a connection to the first host, which has answered more than
    the greeting. Ranks may run earlier than that, and a node that is lost before is found missing much later."""
    port = gang_port(hosts[1], run, *runs)

    def there() -> bool:
        return all(answered(host.run(["ss", "-Htin", "dst", f":{port}"]).stdout) for host in hosts[1:])

    until(there, 60, "the nodes do not watch each other", pause=0.1)


def answered(connections: str) -> bool:
    """Return whether the hub has sent a message after its greeting of 150 bytes; ``connections`` is ss's output."""
    return any(int(count) > 200 for count in re.findall(r"bytes_received:(\d+)", connections))


def gang_connections(host: Host, run: str) -> dict[int, bool]:
    """This member's connections to the hub of its run: the local port, and whether it is established.

    They come from the kernel's table of the host.
    """
    assert host.init
    remote = f":{gang_port(host, run):04X}"
    lines = Path("/proc", str(host.init.pid), "net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    return {int(row[1][-4:], 16): row[3] == "01" for row in rows if row[2].endswith(remote) and row[3] in ("01", "02")}


def wait_until_reconnecting(host: Host, run: str) -> None:
    """Until this member, which has heard nothing for a while, tries a new connection to its hub."""
    until(lambda: False in gang_connections(host, run).values(), 60, "it tries no new connection", pause=0.1)


def wait_until_reconnected(host: Host, run: str, before: Iterable[int]) -> None:
    """Wait until this member has a new connection and no old connection: it closes these once the hub has answered."""
    old = set(before)

    def there() -> bool:
        found = gang_connections(host, run)
        return any(found.values()) and old.isdisjoint(found)

    until(there, 60, lambda: f"{gang_connections(host, run)}, {old} before", pause=0.1)


def wait_for_ranks(lab: Iterable[Host], run: str, count: int = 1, timeout: float = 60) -> None:
    """Until every host has this many ranks that are past the exec of their script."""

    def there() -> bool:
        return all(len(ranks(host, run)) >= count for host in lab)

    until(there, timeout, lambda: f"{[(host.name, [p.argv for p in of_run(host, run)]) for host in lab]}")


def assert_nothing_runs(hosts: Iterable[Host], *, within: float = KEEPERS_END_S) -> None:
    """Of the job, of ddpctl, of anybody: whatever a host runs beside its init and sshd.

    ddpctl's own processes have ``OWN_END_S`` at least: on a busy machine their end takes time.
    """
    left: dict[str, list[tuple[int, Sequence[str]]]] = {}

    def empty(*, own: bool) -> bool:
        left.clear()
        for host in hosts:
            found = running(host) if host.running else []
            left[host.name] = [(one.pid, one.argv) for one in found if own or not is_own(one)]
        return not any(left.values())

    until(lambda: empty(own=False), within, lambda: f"left running: {left}")
    until(lambda: empty(own=True), max(within, OWN_END_S), lambda: f"left running: {left}")


def is_own(process: Process) -> bool:
    """Return whether it is ddpctl's own process on a host: a worker, or a process that watches a run."""
    return any(own in word for word in process.argv for own in OWN_WORDS)


def one_line(done: Done) -> str:
    """Return ddpctl's own last messages on stderr as one line: error, place and cause, then the next command."""
    starts = ("error: ", "hint: ", "interrupted", "detached")
    lines = [line for line in done.stderr.splitlines() if line.startswith(starts)]
    assert lines, done.stderr
    return "; ".join(line.removeprefix("error: ").removeprefix("hint: ") for line in lines)


def disk_holds(host: Host, words: Iterable[bytes]) -> list[str]:
    """The files of a host, on its disk and in its memory, that hold one of the words."""
    assert host.init
    root = Path("/proc", str(host.init.pid), "root")
    places = [host.disk.upper, root / "tmp", root / "dev/shm", root / "run"]
    return [name for place in places for name in files_with(place, words)]


def files_with(folder: Path, words: Iterable[bytes]) -> list[str]:
    words = list(words)
    return [
        str(path)
        for path, content in read_files(folder)
        if any(word in content or word in str(path).encode() for word in words)
    ]


def read_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files below a folder, but for those that a live run removes or renames meanwhile."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            try:
                content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            except FileNotFoundError:
                continue
            if content is not None:
                yield path, content


def json_lines(text: str) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
