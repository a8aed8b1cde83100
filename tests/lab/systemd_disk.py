"""The disk of a host that boots systemd: the few units that such a host needs, and none of this machine's others."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab.disk import SSHD_CONFIG, Disk
from tests.lab.groups import VERSION_2

PROGRAM = "/usr/lib/systemd/systemd"
TOOLS = ("systemctl", "loginctl", "busctl", "dbus-daemon")
UNITS = Path("/usr/lib/systemd/system")
FILES = ("/usr/lib/systemd/user/dbus.socket", str(UNITS / "polkit.service"), str(UNITS / "ssh.service"))
PAM_MODULES = "*/security/pam_systemd.so"  # below /usr/lib
WANTED = {
    "sysinit.target.wants": ("systemd-journald.service",),
    "sockets.target.wants": ("dbus.socket", "systemd-journald.socket", "systemd-journald-dev-log.socket"),
    "multi-user.target.wants": ("systemd-logind.service", "ssh.service"),
}


def missing() -> str | None:
    """Return why no host can boot systemd here; ``None``: a host can."""
    absent = [path for path in (PROGRAM, *FILES) if not Path(path).exists()]
    absent += [tool for tool in TOOLS if not shutil.which(tool)]
    if not any(Path("/usr/lib").glob(PAM_MODULES)):
        absent.append("pam_systemd.so")
    if absent:
        return f"a host with systemd needs {', '.join(absent)}: tests/setup/system-packages installs them"
    if not any((root / "cgroup.procs").exists() for root in VERSION_2):
        return "a host with systemd needs control groups of version 2"
    return None


def install(disk: Disk) -> None:
    """Make systemd the host's init: logins through PAM, and no unit or generator that belongs to this machine."""
    for folder in _folders_of_units():
        disk.empty(folder.relative_to("/"))
    for wants, units in WANTED.items():
        for unit in units:
            disk.link(f"etc/systemd/system/{wants}/{unit}", str(UNITS / unit))
    disk.write("etc/fstab", "")
    disk.write("etc/ssh/sshd_config", SSHD_CONFIG.replace("UsePAM no", "UsePAM yes"))


def _folders_of_units() -> list[Path]:
    """The folders by which this machine's own services would start."""
    tops = (UNITS, Path("/etc/systemd/system"), Path("/etc/systemd/user"))
    found = [folder for top in tops for kind in ("wants", "requires") for folder in top.glob(f"*.{kind}")]
    generators = (Path(top, "systemd/system-generators") for top in ("/usr/lib", "/usr/local/lib", "/etc"))
    return [*found, *(folder for folder in generators if folder.is_dir())]
