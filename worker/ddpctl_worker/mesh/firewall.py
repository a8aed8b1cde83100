"""This node's firewall, read and never changed. The caller judges it."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.tool import ADMIN_PATH, find, tool
from ddpctl_worker.mesh.limits import MAX_RULES, READ_S
from ddpctl_worker.wire.channel import Channel

TOOLS = {"nft": ["nft", "-j", "list", "ruleset"], "iptables": ["iptables-save"], "ip6tables": ["ip6tables-save"]}


def firewall(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The rules as each tool prints them, a {"tool"} frame with the text for each that has any; and who manages them.

    ``nft``: JSON text of ``nft -j list ruleset``; ``iptables`` and ``ip6tables``: text of ``iptables-save``. Then
    {"uid": ours (reading takes root), "ufw", "firewalld": whether it is active, "errors": what the tools said}.
    """
    errors: Dict[str, str] = {}
    for name, argv in TOOLS.items():
        text = _read(argv, errors)
        if text is not None:
            channel.send({"tool": name}, text.encode("utf-8"))
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
    lines = read_text("/etc/ufw/ufw.conf").splitlines()
    return any(line.strip().replace(" ", "") == "ENABLED=yes" for line in lines)


def _read(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    """What the program prints; where only root may ask, by `sudo -n`, if this login may do that without a password."""
    text = _run(argv, errors)
    if text is None and os.geteuid() != 0 and find(argv[0]) is not None:
        text = _run(["sudo", "-n", *argv], {})
    return text


def _run(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    # A login without root often has no sbin in its PATH, and the programs are there all the same.
    env = {"PATH": os.environ.get("PATH", "") + ":" + ADMIN_PATH, "LC_ALL": "C"}
    try:
        said = tool(argv, READ_S, replace_env=env, limit=MAX_RULES + 1)
    except OSError as error:
        said, errors[argv[0]] = None, str(error)
    if said is None:
        return None
    if said["code"] != 0 or len(said["stdout"]) > MAX_RULES:
        how = "did not end within %g s" % READ_S if said["timed_out"] else "exit %s" % said["code"]
        errors[argv[0]] = said["stderr"][:300] or how
        return None
    text: str = said["stdout"]
    return text
