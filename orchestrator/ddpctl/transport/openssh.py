"""The command line of OpenSSH's ``ssh`` for a host: the same way and host keys as ddpctl's own connections.

The options of the inventory and of ssh_config are resolved by ``route``; ``ssh`` reads ssh_config too, for every option
that does not concern the way (ciphers, ControlMaster, forwarding). Host keys are never looser than ddpctl's own check.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Sequence
from pathlib import Path

from ddpctl.spec.inventory import Inventory
from ddpctl.transport.fleet import USER_CONFIG
from ddpctl.transport.route import Hop


def make_ssh_command(hop: Hop, inventory: Inventory, *, terminal: bool, remote: str | None = None) -> list[str]:
    """Return the command line that opens a session on the host.

    ``terminal``: whether the session gets a terminal. ``remote``: the command line for the login shell; ``None``: the
    login shell itself.
    """
    words = [*_to(hop, _config_file(inventory)), "-t" if terminal else "-T", "--", hop.label]
    return words if remote is None else [*words, remote]


def _config_file(inventory: Inventory) -> str | None:
    """Return the file for ``ssh -F``; ``None``: the files that ssh reads by itself.

    ssh finds the home folder in the password file. If $HOME is another folder, ddpctl has read that folder's file.
    """
    if inventory.ssh_config is not None:
        return str(Path(inventory.ssh_config).expanduser())
    if Path.home() == Path(pwd.getpwuid(os.getuid()).pw_dir):
        return None
    own = Path(USER_CONFIG).expanduser()
    return str(own) if own.exists() else "none"


def _to(hop: Hop, config: str | None) -> list[str]:
    options = {
        "HostName": _escape(hop.address),
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": _list_files(hop.user_known_hosts),
        "GlobalKnownHostsFile": _list_files(hop.global_known_hosts),
    }
    if (hop.key_name, hop.key_port) != (hop.address, hop.port):
        options["HostKeyAlias"] = hop.key_name
    if hop.identities_only:
        options["IdentitiesOnly"] = "yes"
    if hop.via is not None:
        options["ProxyCommand"] = _escape(shlex.join([*_to(hop.via, config), "-W", _target(hop), "--", hop.via.label]))
    elif hop.proxy_command is not None:
        options["ProxyCommand"] = _escape(hop.proxy_command)
    words = ["ssh", *(["-F", config] if config is not None else [])]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    for certificate in hop.certificates:
        words += ["-o", f"CertificateFile={_list_files([certificate])}"]
    for identity in dict.fromkeys((*hop.identities, *hop.fallback_identities)):
        words += ["-o", f"IdentityFile={_list_files([identity])}"]  # -i takes no % in a name
    return [*words, "-p", str(hop.port), "-l", hop.user]


def _target(hop: Hop) -> str:
    return f"[{hop.address}]:{hop.port}" if ":" in hop.address else f"{hop.address}:{hop.port}"


def _list_files(files: Sequence[str]) -> str:
    return " ".join(f'"{_escape(file)}"' for file in files) or "none"


def _escape(text: str) -> str:
    """Return ``text`` without tokens: ssh expands ``%h`` and the like, which ``route`` has done already."""
    return text.replace("%", "%%")
