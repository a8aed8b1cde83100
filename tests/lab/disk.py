"""The disk of a host: this machine's installed programs below, an upper layer of its own for all that it writes."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from tests.lab.keys import HOST_KEY
from tests.lab.process import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
EMPTY = ("root", "home", "tmp", "var/tmp", "run")
SHARED_TOPS = {"bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "var"}
SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
Subsystem sftp internal-sftp
"""


def hidden_folders() -> list[Path]:
    """The files that no host may see: the checkout, with the whole top folder around it unless programs live there."""
    top = CHECKOUT.parts[1]
    if Path(top) == CHECKOUT.relative_to("/"):
        return [CHECKOUT]
    return [CHECKOUT if top in SHARED_TOPS else Path("/", top)]


def exposed_folders(*folders: Path) -> list[Path]:
    """The paths that the host would not see: in a hidden folder or on a disk of its own."""
    covered = [*hidden_folders(), *(Path("/", folder) for folder in EMPTY)]
    found = []
    for folder in filter(Path.is_dir, folders):
        apart = os.stat(folder).st_dev != os.stat("/").st_dev
        if apart or any(folder.is_relative_to(one) for one in covered):
            found.append(folder)
    return found


class Disk:
    """One host's folder in the lab's: its host key, and in `upper` all that a technician finds on its disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upper = folder / "upper"

    def format(self, *, name: str, client_key: str, hosts: str) -> None:
        """An installed system with its host key, its name and a client's key; nothing else of anybody's."""
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True)
        for folder in (*map(Path, EMPTY), *(hidden.relative_to("/") for hidden in hidden_folders())):
            self.empty(folder)
        self.write("etc/hostname", f"{name}\n")
        self.write("etc/hosts", hosts)
        self.write("etc/resolv.conf", "")
        self.write("etc/machine-id", f"{uuid.uuid4().hex}\n")
        self.write("etc/shadow", _unlocked_root(Path("/etc/shadow").read_text()), 0o600)
        self.write("etc/ssh/sshd_config", SSHD_CONFIG)
        self.set_host_key()
        self.write("root/.ssh/authorized_keys", client_key, 0o600)
        for private in ("root", "root/.ssh"):
            (self.upper / private).chmod(0o700)
        self.new_boot()

    def set_host_key(self) -> None:
        """Install the key that lies in the host's folder."""
        for name in (HOST_KEY, f"{HOST_KEY}.pub"):
            self.write(f"etc/ssh/{name}", (self.folder / name).read_text(), 0o600)

    def new_boot(self) -> None:
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.upper / path
        self._like_below(target.parent)
        target.write_text(text)
        target.chmod(mode)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        self._like_below((self.upper / path).parent)
        (self.upper / path).symlink_to(target)

    def empty(self, path: Path) -> None:
        """A folder that hides the files below it."""
        self._like_below(self.upper / path)
        os.setxattr(self.upper / path, "trusted.overlay.opaque", b"y")

    def _like_below(self, folder: Path) -> None:
        """Make the folder and its parents with the mode that they have below, which this layer now answers for."""
        for part in (*reversed(folder.relative_to(self.upper).parents), folder.relative_to(self.upper)):
            if (self.upper / part).exists():
                continue
            (self.upper / part).mkdir()
            below = Path("/", part)
            (self.upper / part).chmod(below.stat().st_mode & 0o7777 if below.exists() else 0o755)


def _unlocked_root(shadow: str) -> str:
    """Without PAM the sshd refuses a locked root (`!`) even its key; `*` is no password either, but not locked."""
    text, found = re.subn(r"(?m)^root:[^:]*:", "root:*:", shadow)
    if not found:
        raise LabError("no root in /etc/shadow")
    return text
