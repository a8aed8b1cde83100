"""One host of a lab: its life from boot to power loss, and looking into it from outside, without SSH."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.lab.disk import Disk
from tests.lab.net import Cable
from tests.lab.process import ENVIRON, Identity, LabError, Process, Text, call, read_processes

if TYPE_CHECKING:
    from tests.lab.lab import Lab

BOOT = Path(__file__).with_name("boot.sh")
ENTER = 'for group in $0; do echo $$ >"$group" || exit; done; exec "$@"'
BOOT_TIMEOUT = 60
SHUTDOWN_TIMEOUT = 60
KILL_TIMEOUT = 60
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
ENDED = 'pid 1 of the host is gone: is the power on? ("power_off" was called, or the boot failed)'


class Machine:
    """A host: named, cabled, with a disk that outlives its power."""

    systemd = ""  # the program, where it is the host's init
    limits = False  # whether systemd can limit memory and processes of its units

    def __init__(self, lab: Lab, name: str, cables: Sequence[Cable], disk: Disk) -> None:
        self.lab = lab
        self.name = name
        self.cables = tuple(cables)
        self.disk = disk
        self.init: Identity | None = None
        self._started: list[subprocess.Popen[str]] = []
        self._shell: subprocess.Popen[str] | None = None  # unshare; its child is the host's init

    def __repr__(self) -> str:
        return f"<{self.name} {self.address}>"

    @property
    def address(self) -> str:
        """Where SSH goes."""
        return self.cables[0].address

    @property
    def fabric_address(self) -> str:
        """Where the other hosts reach it: on the hosts' own network if the lab has such a network."""
        return self.cables[-1].address

    # -- power ---------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Power on; returns when the sshd answers."""
        self.lab.boot([self])

    def switch_on(self) -> None:
        """The first of four steps, which the lab takes with many hosts side by side."""
        self.lab.claim.groups.thaw(self.name)
        self._shell = self._unshare()
        self.lab.claim.record(Identity.of(self._shell.pid))

    def meet(self) -> Identity:
        """The host's init, once it is in namespaces of its own."""
        self.init = Identity.of(int(self._hear()))
        self.lab.claim.record(self.init)
        return self.init

    def plug(self) -> None:
        """Tell the init that its cables are in."""
        stdin = self._pipes()[0]
        stdin.write("cables\n")
        stdin.flush()

    def wait_ready(self) -> None:
        if (word := self._hear()) != "ready":
            raise LabError(f"{self.name} did not boot ({word!r}): {self.boot_log()}")
        for pipe in self._pipes():
            pipe.close()

    def power_off(self) -> None:
        """As if the plug were pulled: the peers see silence, no goodbye from the kernel, and memory is lost."""
        for cable in self.cables:
            self.lab.switch.ip(f"link set {cable.port} down", check=False)
        self.destroy()
        for cable in self.cables:  # the kernel takes its time with the namespace; the name is wanted for the next boot
            self.lab.switch.ip(f"link delete {cable.port}", check=False)

    def destroy(self) -> None:
        """End every process of the host at once."""
        if self.init:
            self.init.kill()
            self.init = None
        self._reap()
        if self._shell:
            self._shell.kill()
            self._shell.wait()
            for pipe in self._pipes():
                pipe.close()
            self._shell = None

    def reboot(self) -> None:
        """Power loss, then on again: a new boot id, empty /tmp, /run and /dev/shm, no firewall, the same disk."""
        self.power_off()
        self.disk.new_boot()
        self.boot()

    @property
    def running(self) -> bool:
        return self.init is not None and self.init.alive()

    def boot_log(self) -> str:
        return (self.disk.folder / "boot.log").read_text(errors="replace")

    def _unshare(self) -> subprocess.Popen[str]:
        group = self.lab.claim.groups.host(self.name)
        version_1 = self.lab.claim.groups.make_limitable(self.name) if self.limits else {}
        groups = [*version_1, *([group] if group else [])]
        enter = "".join(f"echo $$ > {shlex.quote(str(each))}/cgroup.procs && " for each in groups)
        namespaces = " ".join((*NAMESPACES, *(["--cgroup"] if group else [])))
        command = f"{enter}exec unshare {namespaces} --fork --kill-child bash {shlex.quote(str(BOOT))}"
        with open(self.disk.folder / "boot.log", "w") as log:
            return subprocess.Popen(
                ["sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd="/",
                env={
                    **ENVIRON,
                    "LAB_HOST": self.name,
                    "LAB_DISK": str(self.disk.folder),
                    "LAB_CGROUP": str(group or ""),
                    "LAB_VERSION_1": " ".join(f"{each.parents[1].name}:{words}" for each, words in version_1.items()),
                    "LAB_SYSTEMD": self.systemd,
                    "LAB_EXPOSE": " ".join(map(str, self.lab.exposed)),
                    "LAB_SHARED": self.lab.shared,
                    "LAB_ADDRESSES": " ".join(f"{cable.interface}={cable.network_address}" for cable in self.cables),
                },
            )

    def _hear(self) -> str:
        """Return the next word of the boot script. Raises a LabError with the boot log if there is no word in time."""
        stdout = self._pipes()[1]
        ready, _, _ = select.select([stdout], [], [], BOOT_TIMEOUT)
        word = stdout.readline().strip() if ready else ""
        if not word:
            raise LabError(f"{self.name} did not boot: {self.boot_log()}")
        return word

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        """The boot script's stdin and stdout."""
        assert self._shell is not None
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        return self._shell.stdin, self._shell.stdout

    # -- looking in ----------------------------------------------------------------------------------------------

    def enter(self, command: str | Sequence[str]) -> list[str]:
        """The command line that runs this in the host, as its root, without SSH."""
        if not self.init or not self.init.alive():
            raise LabError(f"{self.name}: {ENDED}")
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        groups = [str(group / "cgroup.procs") for group in self.groups_of_a_process()]
        namespaces = ["-t", str(self.init.pid), "-m", "-u", "-i", "-n", "-p", "--wd=/root"]
        return ["sh", "-c", ENTER, " ".join(groups), "nsenter", *namespaces, "--", *argv]

    def groups_of_a_process(self) -> list[Path]:
        """The control groups for a process that is started in the host."""
        return self.lab.claim.groups.of_a_process(self.name)

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        stdin: str | None = None,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> Text:
        """Run a command (a list) or a bash line (a string) in the host."""
        return call(self.enter(command), check=check, stdin=stdin, timeout=timeout, env={**ENVIRON, **(env or {})})

    def popen(self, command: str | Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start something in the host that goes on; it ends with the host at the latest."""
        process = subprocess.Popen(
            self.enter(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**ENVIRON, **(env or {})},
        )
        self._started.append(process)
        return process

    @property
    def proc(self) -> Path:
        """The host's own /proc, readable from outside: its pids are the host's own."""
        if not self.init:
            raise LabError(f"{self.name}: {ENDED}")
        return Path("/proc", str(self.init.pid), "root/proc")

    def processes(self, *, system: bool = False) -> list[Process]:
        """The processes of the host, read from /proc; its init and its sshd only where asked for."""
        return [process for process in read_processes(self.proc) if system or not process.system]

    def kill_processes(self) -> None:
        """Whatever tests left running, ended; sessions of the sshd go too, its listener stays."""
        deadline = time.monotonic() + KILL_TIMEOUT
        while True:
            keep = {1, self.sshd_pid()}
            rest = [process for process in self.processes(system=True) if process.pid not in keep]
            if not any(process.state != "Z" for process in rest):
                return self._reap()
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: these do not die: {rest}")
            self.run(["kill", "-KILL", *(str(process.pid) for process in rest)], check=False)

    def outer_pids(self) -> list[int]:
        """The pids of the host's processes as this machine knows them."""
        namespace = self._pid_namespace("self" if self.init is None else str(self.init.pid))
        return [
            int(entry.name) for entry in Path("/proc").glob("[0-9]*") if self._pid_namespace(entry.name) == namespace
        ]

    @staticmethod
    def _pid_namespace(pid: str) -> str:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return ""

    def _reap(self) -> None:
        """The ends on this machine of the processes that `popen` started."""
        while self._started:
            with self._started.pop() as process:
                process.kill()

    def sshd_pid(self) -> int | None:
        text = self.run("cat /run/sshd.pid", check=False).stdout
        return int(text) if text.strip() else None

    def port_free(self, port: int) -> bool:
        """True where nothing listens on the port, on any address of either family."""
        return not any(port == listening for listening in self._listening())

    def _listening(self) -> set[int]:
        if not self.init:
            raise LabError(f"{self.name}: {ENDED}")
        ports = set()
        for table in ("tcp", "tcp6"):
            for line in Path("/proc", str(self.init.pid), "net", table).read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == "0A":
                    ports.add(int(local.rpartition(":")[2], 16))
        return ports

    # -- files ---------------------------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        return self.run(["cat", "--", path]).stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file, with its folders; `~` is not expanded."""
        self.run(["mkdir", "-p", "--", os.path.dirname(path) or "/"])
        self.run(["dd", "status=none", f"of={path}"], stdin=text)
        self.run(["chmod", f"{mode:o}", "--", path])

    def exists(self, path: str) -> bool:
        return self.run(["test", "-e", path], check=False).returncode == 0

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").strip()
