"""The faults of a host, a line each for the author of a test; `heal` undoes every fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.lab.disk import Disk
from tests.lab.keys import HOST_KEY, public_key
from tests.lab.machine import Machine
from tests.lab.net import Cable
from tests.lab.process import wait_until

if TYPE_CHECKING:
    from tests.lab.lab import Lab

FIREWALL = """\
add table inet firewall
add chain inet firewall input { type filter hook input priority 0; policy accept; }
add chain inet firewall output { type filter hook output priority 0; policy accept; }
"""
BLACK_HOLE = """\
add table bridge {port}
add chain bridge {port} forward {{ type filter hook forward priority 0; policy accept; }}
add rule bridge {port} forward iifname "{port}" meta length > {size} drop
add rule bridge {port} forward oifname "{port}" meta length > {size} drop
"""
INTERPRETERS = "/usr/bin/python3* /usr/bin/python /usr/local/bin/python*"
HIDDEN = "/var/lib/hidden-interpreters"


class Host(Machine):
    """A host that can be hurt."""

    def __init__(self, lab: Lab, name: str, cables: Sequence[Cable], disk: Disk) -> None:
        super().__init__(lab, name, cables, disk)
        self._healing: dict[str, Callable[[], object]] = {}

    def heal(self) -> None:
        """Take back whatever was done: power, cable, firewall, speed, sshd, keys, interpreters, mounts."""
        healing, self._healing = self._healing, {}
        if not self.running:
            self.power_off()
            self.boot()
        for undo in reversed(healing.values()):
            undo()

    def _remember(self, what: str, undo: Callable[[], object]) -> None:
        self._healing.setdefault(what, undo)

    # -- network -------------------------------------------------------------------------------------------------

    def firewall(self, *rules: str, chain: str = "input") -> None:
        """Add nftables rules to the host's input (or output) chain, such as `tcp dport 29500 drop`."""
        lines = [f"add rule inet firewall {chain} {rule}" for rule in rules]
        self.run(["nft", "-f", "-"], stdin=FIREWALL + "\n".join(lines) + "\n")
        self._remember("firewall", self.clear_firewall)

    def clear_firewall(self) -> None:
        self.run(["nft", "flush", "ruleset"])

    def drop(self, *, port: int | str | None = None, from_: Machine | str | None = None) -> None:
        """Drop incoming packets without an answer: TCP to the port (or range `a-b`), or anything; from one host, or
        from all.
        """
        self.firewall(_match(port, from_) + "drop")

    def reject(self, *, port: int | str | None = None, from_: Machine | str | None = None) -> None:
        """Refuse incoming connections: the client sees `connection refused` at once."""
        self.firewall(_match(port, from_) + "meta l4proto tcp reject with tcp reset")

    def cable(self, plugged: bool, *, interface: str = "eth0") -> None:
        """Pull the cable out, or put it back."""
        port = self._port(interface)
        self.lab.switch.ip(f"link set {port} {'up' if plugged else 'down'}")
        self._remember(f"cable {interface}", lambda: self.cable(True, interface=interface))

    def slow(self, rate: str, *, interface: str = "eth0", out: bool = True, into: bool = True) -> None:
        """Cap the link at a rate of tc (`200mbit`), out of the host and into it."""
        port, shape = self._port(interface), ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        if out:
            self.run(["tc", "qdisc", "replace", "dev", interface, *shape])
        if into:
            self.lab.switch.call(["tc", "qdisc", "replace", "dev", port, *shape])
        self._remember(f"slow {interface}", lambda: self.full_speed(interface=interface))

    def full_speed(self, *, interface: str = "eth0") -> None:
        self.run(["tc", "qdisc", "delete", "dev", interface, "root"], check=False)
        self.lab.switch.call(["tc", "qdisc", "delete", "dev", self._port(interface), "root"], check=False)

    def mtu_black_hole(self, size: int, *, interface: str = "eth0") -> None:
        """The switch drops packets longer than this in both directions without an ICMP error; shorter packets pass."""
        port = self._port(interface)
        for line in self.lab.hosts:  # a sender that hands the wire 64 KB at once would be cut off for its size alone
            line.run(["ip", "link", "set", interface, "gso_max_segs", "1"])
        self.lab.switch.call(["nft", "-f", "-"], stdin=BLACK_HOLE.format(port=port, size=size))
        self._remember(f"mtu {interface}", lambda: self.clear_mtu_black_hole(interface=interface))

    def clear_mtu_black_hole(self, *, interface: str = "eth0") -> None:
        self.lab.switch.call(["nft", "delete", "table", "bridge", self._port(interface)], check=False)

    def hosts_file(self, text: str) -> None:
        """Replace /etc/hosts."""
        before = self.read("/etc/hosts")
        self.write("/etc/hosts", text)
        self._remember("hosts", lambda: self.write("/etc/hosts", before))

    def _port(self, interface: str) -> str:
        return next(cable.port for cable in self.cables if cable.interface == interface)

    # -- SSH -----------------------------------------------------------------------------------------------------

    def no_ssh(self) -> None:
        """No sshd: port 22 refuses. Sessions that are open stay."""
        self._signal_sshd("KILL")
        self.run("rm -f /run/sshd.pid")
        self._wait("the sshd still listens", lambda: self.port_free(22))
        self._remember("sshd", self.start_sshd)

    def start_sshd(self) -> None:
        """Start the sshd if it does not run, wake it if it is silent."""
        self._signal_sshd("CONT")
        if self.port_free(22):
            self.run(["/usr/sbin/sshd", "-E", "/run/sshd.log"])
            self._wait("no sshd listens", lambda: not self.port_free(22))

    def restart_sshd(self) -> None:
        """With a new configuration or key."""
        self._signal_sshd("KILL")
        self._wait("the old sshd still listens", lambda: self.port_free(22))
        self.start_sshd()

    def silent_sshd(self) -> None:
        """The kernel still accepts connections to port 22, but the stopped sshd never answers."""
        self._signal_sshd("STOP")
        self._remember("sshd", self.start_sshd)

    def sshd_config(self, *lines: str) -> None:
        """Put lines before the sshd's configuration (the first value counts), such as `MaxSessions 2`."""
        before = self.read("/etc/ssh/sshd_config")
        self.write("/etc/ssh/sshd_config", "\n".join(lines) + "\n" + before)
        self.restart_sshd()
        self._remember("sshd_config", lambda: self._restore_sshd_config(before))

    def _restore_sshd_config(self, text: str) -> None:
        self.write("/etc/ssh/sshd_config", text)
        self.restart_sshd()

    def wrong_host_key(self) -> None:
        """Give the host another host key than the key in known_hosts."""
        self.run(f"rm -f /etc/ssh/{HOST_KEY}* && ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/{HOST_KEY}")
        self.restart_sshd()
        self._remember("host key", self._restore_host_key)

    def _restore_host_key(self) -> None:
        for name in (HOST_KEY, f"{HOST_KEY}.pub"):
            self.write(f"/etc/ssh/{name}", (self.disk.folder / name).read_text(), 0o600)
        self.restart_sshd()

    def public_key(self) -> str:
        """The host key that belongs in known_hosts."""
        return public_key(self.disk.folder / HOST_KEY)

    def refuse_key(self) -> None:
        """No key is accepted."""
        self.run("mv /root/.ssh/authorized_keys /root/.ssh/refused")
        self._remember("authorized_keys", lambda: self.run("mv /root/.ssh/refused /root/.ssh/authorized_keys"))

    def bashrc(self, text: str) -> None:
        """Set the lines that bash runs at the start of each command over SSH."""
        self.write("/root/.bashrc", f"{text}\n")
        self._remember("bashrc", lambda: self.run("rm -f /root/.bashrc"))

    def add_user(self, name: str) -> None:
        """A user with a home folder, let in with the lab's key."""
        self.run(["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", name])
        self.run(f"cp -r /root/.ssh ~{name}/.ssh && chown -R {name}: ~{name}/.ssh")

    def _signal_sshd(self, signal: str) -> None:
        if pid := self.sshd_pid():
            self.run(f"kill -{signal} {pid}", check=False)

    def _wait(self, trouble: str, done: Callable[[], bool]) -> None:
        wait_until(done, f"{self.name}: {trouble}")

    # -- the machine as a whole -----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """The machine hangs: every process stands still, and the kernel goes on answering."""
        self.lab.claim.groups.freeze(self.name, True)
        self._remember("freeze", self.thaw)

    def thaw(self) -> None:
        self.lab.claim.groups.freeze(self.name, False)

    @property
    def frozen(self) -> bool:
        return self.lab.claim.groups.frozen(self.name)

    def memory_limit(self, limit: str) -> None:
        """Limit the memory (`300M`) of all the host's processes together; beyond it the kernel kills a process."""
        self.lab.claim.groups.limit_memory(self.name, limit, self.outer_pids())
        self._remember("memory", lambda: self.memory_limit("64G"))

    def next_pid(self, pid: int) -> None:
        """The next process that starts gets this pid, if it is free: how pids come to be used again."""
        self.run("cat > /proc/sys/kernel/ns_last_pid", stdin=str(pid - 1))

    # -- disk and programs ---------------------------------------------------------------------------------------

    def small_tmpfs(self, path: str, size: str, options: str = "rw") -> None:
        """A small disk mounted at the path, empty: `1m`, `200k`; options of mount such as `noexec`, `ro`."""
        self.run(["mkdir", "-p", path])
        self.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755,{options}", "tmpfs", path])
        self._remember(f"mount {path}", lambda: self.run(["umount", "--lazy", path], check=False))

    def fill_disk(self, path: str, size: str = "1m") -> None:
        """A small disk mounted at the path, with nothing free on it."""
        self.small_tmpfs(path, size)
        self.run(f"cat /dev/zero > {path}/filler", check=False)

    def without_python(self) -> None:
        """No Python on the PATH."""
        self.run(f"mkdir -p {HIDDEN} && for f in {INTERPRETERS}; do [ ! -e $f ] || mv $f {HIDDEN}/${{f//\\//@}}; done")
        self._remember("python", self.with_python)

    def with_python(self) -> None:
        self.run(f"shopt -s nullglob; cd {HIDDEN} && for f in @*; do mv $f ${{f//@//}}; done")


def _match(port: int | str | None, source: Machine | str | None) -> str:
    words = []
    if source is not None:
        words.append(f"ip saddr {source if isinstance(source, str) else source.fabric_address}")
    if port is not None:
        words.append(f"tcp dport {port}")
    return " ".join([*words, ""])
