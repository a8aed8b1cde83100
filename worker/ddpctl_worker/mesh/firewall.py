"""Reads this node's firewall, and never changes it. ddpctl judges it."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine.fs import read_text
from ddpctl_worker.machine.tool import ADMIN_PATH, find, run_if_installed
from ddpctl_worker.mesh.limits import MAX_RULES, READ_S
from ddpctl_worker.wire.channel import Channel

TOOLS = {"nft": ["nft", "-j", "list", "ruleset"], "iptables": ["iptables-save"], "ip6tables": ["ip6tables-save"]}


def firewall(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Send the rules as each tool prints them, in a {"tool"} frame with the text, and return their manager.

    ``nft``: JSON text of ``nft -j list ruleset``; ``iptables`` and ``ip6tables``: text of ``iptables-save``. The
    answer: {"uid": of this login (reading takes root), "ufw" and "firewalld": whether each is active, "errors": of the
    tools}.
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
    """Return whether ufw is active: by its own status, or by its configuration if only root may ask."""
    status = _read(["ufw", "status"], errors)
    if status is not None:
        return "Status: active" in status
    lines = read_text("/etc/ufw/ufw.conf").splitlines()
    return any(line.strip().replace(" ", "") == "ENABLED=yes" for line in lines)


def _read(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    """Return the program's output. If only root may run it, try `sudo -n`, which works if it needs no password."""
    text = _run(argv, errors)
    if text is None and os.geteuid() != 0 and find(argv[0]) is not None:
        text = _run(["sudo", "-n", *argv], {})
    return text


def _run(argv: List[str], errors: Dict[str, str]) -> Optional[str]:
    # A login without root often has no sbin in its PATH, although the programs exist.
    env = {"PATH": os.environ.get("PATH", "") + ":" + ADMIN_PATH, "LC_ALL": "C"}
    try:
        result = run_if_installed(argv, READ_S, replace_env=env, limit=MAX_RULES + 1)
    except OSError as error:
        result, errors[argv[0]] = None, str(error)
    if result is None:
        return None
    if result["code"] != 0 or len(result["stdout"]) > MAX_RULES:
        how = "did not end within %g s" % READ_S if result["timed_out"] else "exit %s" % result["code"]
        errors[argv[0]] = result["stderr"][:300] or how
        return None
    text: str = result["stdout"]
    return text
