"""The command line of OpenSSH's ``ssh`` for a host: the same way and host keys as ddpctl's own connections.

The options of the inventory and of ssh_config are resolved by ``route``; ``ssh`` reads ssh_config too, for every option
that does not concern the way (ciphers, ControlMaster, forwarding). Host keys are never looser than ddpctl's own check.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpctl.transport.limits import CONNECT_S, KEEPALIVE_COUNT, KEEPALIVE_IDLE_S
from ddpctl.transport.route import USER_CONFIG, Hop

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Inventory

Options = Mapping[str, str]
_NONE: Options = {}


# Options of a connection that carries commands: no question to a terminal that is not there, a dead peer noticed in
# seconds, nothing forwarded, and nothing written to the user's files.
_CARRYING = {
    "ConnectTimeout": f"{CONNECT_S:.0f}",
    "ServerAliveInterval": f"{KEEPALIVE_IDLE_S}",
    "ServerAliveCountMax": f"{KEEPALIVE_COUNT}",
    "LogLevel": "ERROR",
    "RemoteCommand": "none",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "Tunnel": "no",
    "UpdateHostKeys": "no",
}


def make_ssh_command(hop: Hop, inventory: Inventory, *, terminal: bool, remote: str | None = None) -> list[str]:
    """Return the command line that opens a session on the host.

    ``terminal``: whether the session gets a terminal. ``remote``: the command line for the login shell; ``None``: the
    login shell itself.
    """
    words = [*_to(hop, config_file(inventory), {}), "-t" if terminal else "-T", "--", hop.label]
    return words if remote is None else [*words, remote]


@dataclass(frozen=True)
class CommandLines:
    """The command lines of the connections that OpenSSH holds. ``config``: the file for ``ssh -F``."""

    config: str | None

    def login(self, hop: Hop, jump: Options, *, ask: bool, control: str) -> list[str]:
        """Return the command line that logs in and runs no command (``-N``).

        ``jump``: the options that reach the jump host. ``ask``: whether ssh may ask. ``control``: the socket over which
        commands share the connection.
        """
        options = {"ControlMaster": "yes", "ControlPath": _quote(control), "ControlPersist": "no", **_CARRYING}
        options |= {
            "LogLevel": "INFO",
            "BatchMode": "no" if ask else "yes",
        }  # INFO: the server's words
        words = self._words(hop, options, jump)
        return [*words[:1], "-N", *words[1:]]

    def users_own(self, hop: Hop) -> list[str]:
        """Return the command line that the user would type for the host."""
        return ["ssh", *(["-F", self.config] if self.config is not None else []), "--", hop.label]

    def command(self, hop: Hop, control: Options) -> list[str]:
        """Return the command line that runs a command over a connection that stands, up to the command."""
        return self._words(hop, {**control, **_CARRYING, "BatchMode": "yes"}, {})

    def tunnel(self, hop: Hop, jump: Options) -> str:
        """Return the ProxyCommand that reaches ``hop`` through its jump host. ``jump``: as for ``login``."""
        assert hop.via is not None
        return _make_proxy_command(hop, hop.via, self.config, jump)

    def _words(self, hop: Hop, options: Options, jump: Options) -> list[str]:
        return [*_to(hop, self.config, options, jump), "-T", "--", hop.label]


def share_options(control: str) -> dict[str, str]:
    """Return the options that use the connection behind a control socket, and never a connection of its own.

    Without the socket, ssh would log in again, and might ask.
    """
    return {"ControlMaster": "no", "ControlPath": _quote(control), "ProxyCommand": "false"}


def config_file(inventory: Inventory) -> str | None:
    """Return the file for ``ssh -F``; ``None``: the files that ssh reads by itself.

    ssh finds the home folder in the password file. If $HOME is another folder, ddpctl has read that folder's file.
    """
    if inventory.ssh_config is not None:
        return str(Path(inventory.ssh_config).expanduser())
    if Path.home() == Path(pwd.getpwuid(os.getuid()).pw_dir):
        return None
    own = Path(USER_CONFIG).expanduser()
    return str(own) if os.path.exists(own) else "none"


def _to(hop: Hop, config: str | None, first: Options, jump: Options = _NONE) -> list[str]:
    """Return ssh's words for a server. ``first``: options that count before all others. ``jump``: of its jump host."""
    options = {
        **first,
        "HostName": _escape(hop.address),
        "StrictHostKeyChecking": "yes",
        "VerifyHostKeyDNS": "no",  # a key must be in a file, as for ddpctl's own client
        "NoHostAuthenticationForLocalhost": "no",
        "CheckHostIP": "no",
        "UserKnownHostsFile": _list_files(hop.user_known_hosts),
        "GlobalKnownHostsFile": _list_files(hop.global_known_hosts),
    }
    if (hop.key_name, hop.key_port) != (hop.address, hop.port):
        options["HostKeyAlias"] = hop.key_name
    if hop.identities_only:
        options["IdentitiesOnly"] = "yes"
    if hop.via is not None:
        options.setdefault("ProxyCommand", _escape(_make_proxy_command(hop, hop.via, config, jump)))
    elif hop.proxy_command is not None:
        options.setdefault("ProxyCommand", _escape(hop.proxy_command))
    words = ["ssh", *(["-F", config] if config is not None else [])]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    for certificate in hop.certificates:
        words += ["-o", f"CertificateFile={_list_files([certificate])}"]
    for identity in dict.fromkeys((*hop.identities, *hop.fallback_identities)):
        words += ["-o", f"IdentityFile={_list_files([identity])}"]  # -i takes no % in a name
    return [*words, "-p", str(hop.port), "-l", hop.user]


def _make_proxy_command(hop: Hop, via: Hop, config: str | None, jump: Options) -> str:
    return shlex.join([*_to(via, config, jump), "-W", _target(hop), "--", via.label])


def _target(hop: Hop) -> str:
    return f"[{hop.address}]:{hop.port}" if ":" in hop.address else f"{hop.address}:{hop.port}"


def _list_files(files: Sequence[str]) -> str:
    return " ".join(f'"{_escape(file)}"' for file in files) or "none"


def _quote(path: str) -> str:
    return f'"{_escape(path)}"'


def _escape(text: str) -> str:
    """Return ``text`` without tokens: ssh expands ``%h`` and the like, which ``route`` has done already."""
    return text.replace("%", "%%")
