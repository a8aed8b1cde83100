"""This node's firewall, read and never changed. The caller judges it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any, Dict, List, Optional

from ddpctl_worker.channel import Channel

READ_S = 8.0
LIMIT = 8 << 20
TOOLS = {"nft": ["nft", "-j", "list", "ruleset"], "iptables": ["iptables-save"], "ip6tables": ["ip6tables-save"]}
# A login without root often has no sbin in its PATH, and the programs are there all the same.
_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


def firewall(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The rules as each tool prints them, a {"tool"} frame with the text for each that has any; and who manages them.

    ``nft``: JSON text of ``nft -j list ruleset``; ``iptables`` and ``ip6tables``: text of ``iptables-save``. Then
    {"uid": ours (reading takes root), "ufw", "firewalld": whether it is active, "errors": what the tools said}.
    """
    errors: Dict[str, str] = {}
    for tool, argv in TOOLS.items():
        text = _read(argv, errors)
        if text is not None:
            channel.send({"tool": tool}, text.encode("utf-8"))
    return {
        "uid": os.getuid(),
        "ufw": _ufw(errors),
        "firewalld": (_read(["firewall-cmd", "--state"], errors) or "").strip() == "running",
        "errors": errors,
    }


def _ufw(errors: Dict[str, str]) -> bool:
    """Active by its own word, or, where only root may ask, by its configuration."""
    status = _read(["ufw", "status"], errors)
    if status is not None:
        return "Status: active" in status
    try:
        with open("/etc/ufw/ufw.conf") as file:
            return any(line.strip().replace(" ", "") == "ENABLED=yes" for line in file)
    except OSError:
        return False


def _read(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    """What the program prints; where only root may ask, by `sudo -n`, if this login may do that without a password."""
    program = shutil.which(argv[0], path=_PATH)
    if program is None:
        return None
    text = _run([program, *argv[1:]], errors)
    sudo = shutil.which("sudo", path=_PATH)
    if text is None and sudo is not None and os.geteuid() != 0:
        text = _run([sudo, "-n", program, *argv[1:]], {})
    return text


def _run(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    name = os.path.basename(argv[0])
    env = {"PATH": _PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=READ_S,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        errors[name] = str(error)
        return None
    if done.returncode != 0 or len(done.stdout) > LIMIT:
        errors[name] = done.stderr.decode("utf-8", "replace")[:300] or "exit %d" % done.returncode
        return None
    return done.stdout.decode("utf-8", "replace")
