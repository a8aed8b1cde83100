"""A host with systemd as its first process: each login is a session of logind, and root may end any of them."""

from __future__ import annotations

from pathlib import Path

from tests.lab.host import Host
from tests.lab.machine import SHUTDOWN_TIMEOUT
from tests.lab.process import Process, read_processes, wait_until
from tests.lab.systemd_disk import PROGRAM

OWN_GROUP = "lab"  # below the host's group: the processes that the lab starts in the host, which belong to no unit


class SystemdHost(Host):
    """A host that boots systemd, in about a second."""

    systemd = PROGRAM

    def groups_of_a_process(self) -> list[Path]:
        """Systemd owns the host's group, and a process may be in a leaf of it only."""
        top, found = self.lab.claim.groups.host(self.name), []
        for group in super().groups_of_a_process():
            own = group / OWN_GROUP if group == top else group
            own.mkdir(exist_ok=True)
            found.append(own)
        return found

    def processes(self, *, system: bool = False) -> list[Process]:
        """The processes of the host; services, sshd and the users' own systemd only where asked for."""
        found = read_processes(self.proc)
        return found if system else [one for one in found if not (one.system or self._serves(one.pid))]

    def kill_processes(self) -> None:
        """End all that tests left running. Services and sessions stay."""
        while rest := [process for process in self.processes() if process.state not in "ZX"]:
            self.run(["kill", "-KILL", *(str(process.pid) for process in rest)], check=False)
        self._reap()

    def unit_of(self, pid: int) -> str:
        """The path of a process in the tree of units, such as `/user.slice/user-1000.slice/session-3.scope`."""
        try:
            lines = (self.proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return ""
        return next(line.partition(f"/{self.name}")[2] for line in lines if line.startswith("0::"))

    def _serves(self, pid: int) -> bool:
        return self.unit_of(pid).endswith((".service", "/init.scope"))

    def logind(self, *lines: str) -> None:
        """Set lines of logind's configuration, such as `KillUserProcesses=yes`."""
        self.write("/etc/systemd/logind.conf.d/lab.conf", "\n".join(["[Login]", *lines, ""]))
        self.run("systemctl reset-failed systemd-logind; systemctl restart systemd-logind")

    def limit(self, unit: str, *limits: str) -> None:
        """Limit a unit, such as `user-1000.slice` to `TasksMax=100`, in a lab with `limits`; `heal` lifts the limit."""
        self.run(["systemctl", "set-property", "--runtime", unit, *limits])
        lifted = [f"{limit.partition('=')[0]}=infinity" for limit in limits]
        self._remember(f"limits {unit}", lambda: self.run(["systemctl", "set-property", "--runtime", unit, *lifted]))

    def wait_until_off(self) -> None:
        """Wait until the host has shut down by itself; then switch it off."""
        wait_until(lambda: not self.running, f"{self.name}: the host does not shut down", SHUTDOWN_TIMEOUT)
        self.power_off()

    def boot_again(self) -> None:
        """Switch the host on after it has shut down by itself: a new boot id, the same disk."""
        self.wait_until_off()
        self.disk.new_boot()
        self.boot()

    # -- SSH: systemd restarts an sshd that is killed ---------------------------------------------------------------

    def no_ssh(self) -> None:
        self.run(["systemctl", "stop", "ssh"])
        self._remember("sshd", self.start_sshd)

    def start_sshd(self) -> None:
        self._signal_sshd("CONT")
        self.run(["systemctl", "start", "ssh"])

    def restart_sshd(self) -> None:
        self.run(["systemctl", "restart", "ssh"])
