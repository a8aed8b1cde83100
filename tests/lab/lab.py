"""A laboratory: real hosts with real sshds on a single machine, each in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from tests.lab import claim as claims
from tests.lab import interpreters, systemd_disk
from tests.lab.disk import Disk, exposed_folders
from tests.lab.host import Host
from tests.lab.keys import HOST_KEY, KEY, generate_keys, public_key
from tests.lab.machine import Machine
from tests.lab.net import Cable, Switch
from tests.lab.process import Text, call
from tests.lab.systemd_host import SystemdHost

FIRST_ADDRESS = 11
TOOLS = ("unshare", "nsenter", "pivot_root", "ip", "tc", "nft", "ssh", "ssh-keygen", "/usr/sbin/sshd")


def missing() -> str | None:
    """Return why no lab can be started here; ``None``: a lab can be started."""
    if os.geteuid() != 0:
        return "a lab needs root (network namespaces, mounts)"
    if absent := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"a lab needs {', '.join(absent)}: tests/setup/system-packages installs them"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "a lab needs overlay file systems (modprobe overlay)"
    return None


class Lab:
    """Hosts node0 to node<N-1>. Use as a context manager, or call `stop`.

    fabric: every host gets a second network (eth1) that this machine is not on.
    jump: only node0 is reachable from this machine; the other hosts are behind it.
    ipv6: no host has an IPv4 address but 127.0.0.1.
    expose: folders of this machine that hosts would not see, such as an interpreter below a home.
    shared: this folder of every host is a mount of the same folder, like an NFS home.
    systemd: the first process of every host is systemd, and logins are sessions of logind (`SystemdHost`).
    limits: systemd can limit memory and processes of its units (`MemoryMax`, `TasksMax`).
    """

    def __init__(
        self,
        count: int,
        *,
        fabric: bool = False,
        jump: bool = False,
        detached: bool = False,
        ipv6: bool = False,
        expose: Sequence[Path] = (),
        shared: str = "",
        systemd: bool = False,
        limits: bool = False,
    ) -> None:
        self.jump = jump
        self.systemd = systemd
        self.limits = limits
        self.hosts: list[Host] = []
        self.claim = claims.claim()
        self.shared = shared
        self._switch: Switch | None = None
        self.exposed = exposed_folders(interpreters.cache(), *expose)
        try:
            self._lay_out(count, fabric=fabric, detached=detached, ipv6=ipv6)
            self.boot(self.hosts)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    # -- what a test uses ----------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.claim.folder

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        return self.folder / KEY

    def ssh(self, host: str, command: str, *, timeout: float = 60) -> Text:
        """Run a command with the OpenSSH client, as a user would."""
        return call(["ssh", "-F", str(self.ssh_config), host, command], check=False, timeout=timeout)

    def home(self, name: str) -> Path:
        """A home folder of a user who may log in everywhere: `.ssh` with config, known_hosts and key. Each name has its
        own home.
        """
        home = self.folder / "homes" / name
        if not home.exists():
            ssh = home / ".ssh"
            ssh.mkdir(parents=True, mode=0o700)
            (ssh / "config").write_text(self._config(ssh))
            for file in (self.known_hosts, self.key):
                shutil.copy2(file, ssh / file.name)
        return home

    def inventory(self, path: Path, **keys: object) -> Path:
        """Write an inventory of every host, in JSON (which is YAML); the keys are added or replace what is there."""
        hosts = [{"name": host.name, "address": host.address} for host in self.hosts]
        if self.jump:
            hosts = [{**host, "jump": "node0"} if host["name"] != "node0" else host for host in hosts]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cluster": "lab", "hosts": hosts, **keys}, indent=2) + "\n")
        return path

    def heal(self) -> None:
        """Every host as it was after the start, but for what is on its disk; nothing of a test runs on."""
        for host in self.hosts:
            host.heal()
            host.kill_processes()

    def stop(self) -> None:
        """Leave nothing behind."""
        for host in self.hosts:
            host.destroy()
        if self._switch:
            self._switch.power_off()
        self.claim.release()

    # -- what the hosts use --------------------------------------------------------------------------------------

    @property
    def switch(self) -> Switch:
        assert self._switch is not None
        return self._switch

    def boot(self, hosts: Sequence[Machine]) -> None:
        """Start hosts side by side: first the namespaces of every host, then all cables together, then wait for each
        sshd.
        """
        for host in hosts:
            host.switch_on()
        inits = [host.meet() for host in hosts]
        self.switch.connect((cable, init.pid) for host, init in zip(hosts, inits, strict=True) for cable in host.cables)
        for host in hosts:
            host.plug()
        for host in hosts:
            host.wait_ready()
        processes = {host.name: host.init.pid for host in self.hosts if host.init}
        (self.folder / "inits.json").write_text(json.dumps(processes))

    def write_known_hosts(self) -> None:
        lines = [f"{host.name},{host.address} {host.public_key()}" for host in self.hosts]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    # -- the start -----------------------------------------------------------------------------------------------

    def _lay_out(self, count: int, *, fabric: bool, detached: bool, ipv6: bool) -> None:
        self.folder.mkdir()
        call(["mount", "-t", "tmpfs", "-o", "size=70%,mode=755", "ddpctl-lab", str(self.folder)])
        (self.folder / "shared").mkdir()
        self._switch = Switch(self.claim, detached=detached, ipv6=ipv6)
        self._switch.power_on()
        cables = [self._cables(index, fabric) for index in range(count)]
        names = [f"node{index}" for index in range(count)]
        table = "".join(f"{ends[0].address} {name}\n" for name, ends in zip(names, cables, strict=True))
        generate_keys([self.key, *(self.folder / name / HOST_KEY for name in names)])
        for name, ends in zip(names, cables, strict=True):
            disk = Disk(self.folder / name)
            disk.format(name=name, client_key=public_key(self.key), hosts=f"127.0.0.1 localhost\n{table}")
            if self.systemd:
                systemd_disk.install(disk)
            self.hosts.append((SystemdHost if self.systemd else Host)(self, name, ends, disk))
            self.hosts[-1].limits = self.limits
        self.write_known_hosts()
        self.ssh_config.write_text(self._config(self.folder))

    def _cables(self, index: int, fabric: bool) -> list[Cable]:
        """Return the cables of a host. Segment 0 reaches this machine; segment 1 is among the hosts only."""
        segments = [0]
        if fabric or (self.jump and index == 0):
            segments = [0, 1]
        elif self.jump:
            segments = [1]
        return [
            Cable(f"eth{nth}", segment, f"p{index}s{segment}", self.switch.address(segment, FIRST_ADDRESS + index))
            for nth, segment in enumerate(segments)
        ]

    def _config(self, folder: Path) -> str:
        """Return an ssh_config that refers to the files in the folder."""
        common = {
            "User": "root",
            "IdentityFile": folder / KEY,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        sections = ["Host node*", *(f"  {key} {value}" for key, value in common.items())]
        for host in self.hosts:
            sections += [f"Host {host.name}", f"  HostName {host.address}"]
            if self.jump and host is not self.hosts[0]:
                sections.append("  ProxyJump node0")
        return "\n".join(sections) + "\n"
