"""A host with systemd is a machine of its own: boots, sessions, users, and a disk that outlives a reboot."""

from __future__ import annotations

from tests.conftest import MakeLab
from tests.lab import SystemdHost
from tests.lab.process import wait_until


def test_a_host_boots_systemd_and_reboots(make_lab: MakeLab) -> None:
    lab = make_lab(1, systemd=True)
    host = lab[0]
    assert isinstance(host, SystemdHost)
    assert host.run(["systemctl", "is-system-running"], check=False).stdout.strip() in ("running", "starting")
    assert host.run(["systemctl", "list-units", "--failed", "--plain", "--no-legend"]).stdout == ""
    assert host.boot_id() == (host.disk.folder / "boot_id").read_text().strip()
    machine = host.read("/etc/machine-id")

    host.add_user("alice")
    told = lab.ssh("alice@node0", "id -un; cat /proc/self/cgroup; echo $XDG_RUNTIME_DIR; sudo -n true").stdout
    uid = host.run(["id", "-u", "alice"]).stdout.strip()
    assert told.startswith("alice\n")
    assert f"/user.slice/user-{uid}.slice/session-" in told
    assert told.endswith(f"/run/user/{uid}\n")  # and sudo says nothing on stdout
    wait_until(lambda: host.processes() == [], "processes of the host count as those of a job")

    boot = host.boot_id()
    host.run("echo kept > /var/lib/kept; echo lost > /run/lost")
    lab.ssh("node0", "systemctl reboot")
    host.boot_again()
    assert host.read("/var/lib/kept") == "kept\n"
    assert not host.exists("/run/lost")
    assert host.boot_id() != boot
    assert host.read("/etc/machine-id") == machine
    assert lab.ssh("alice@node0", "id -un").stdout == "alice\n"
