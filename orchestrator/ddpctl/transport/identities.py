"""Who we are to the hosts: the agent's keys and key files, loaded once for a whole fleet, and what was asked for."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import paramiko

from ddpctl.transport.route import DEFAULT_KEYS, Hop


class Prompter(Protocol):
    """Asks the person at the terminal, before any connection; None means: no answer, go on without."""

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file."""
        ...

    def password(self, user: str, hosts: Sequence[str]) -> str | None:
        """The password of an account, the same one on all of ``hosts``."""
        ...


@dataclass(frozen=True)
class Identity:
    """A key we can sign with; ``label`` is what messages call it."""

    label: str
    key: paramiko.PKey = field(repr=False)


class SharedAgentKey(paramiko.AgentKey):
    """A key in the agent. Its one connection is shared by all logins: a question and its answer must stay together."""

    _asking = threading.Lock()

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:
        with self._asking:
            return super().sign_ssh_data(data, algorithm)


class KeyRing:
    """All keys of one fleet. ``unlock`` is called once, on the main thread, before the fan-out."""

    def __init__(self, prompter: Prompter | None = None, *, use_agent: bool = True) -> None:
        self._prompter = prompter
        self._files: dict[str, Identity | None] = {}
        self._passwords: dict[str, str] = {}
        self._agent: paramiko.Agent | None = None
        self._agent_keys: dict[bytes, Identity] = {}
        self.notes: dict[str, str] = {}  # path -> why its key cannot be used
        if use_agent:
            self._ask_agent()

    def _ask_agent(self) -> None:
        try:
            self._agent = paramiko.Agent()
        except (paramiko.SSHException, OSError) as error:
            self.notes["agent"] = f"the agent does not answer ({error})"
            return
        for key in self._agent.get_keys():
            label = f"{key.comment or key.get_name()} (agent)"
            shared = SharedAgentKey(self._agent, key.blob, key.comment)
            self._agent_keys[key.asbytes()] = Identity(label, shared)

    def unlock(self, hops: Iterable[Hop]) -> None:
        """Load every file the hops name; ask for each passphrase once, and for a password where there is no key."""
        keyless: dict[str, list[str]] = {}
        for hop in hops:
            for path in self._paths(hop):
                if path not in self._files:
                    self._files[path] = self._load(path, ask=path in hop.identities)
            if not self.identities(hop):
                keyless.setdefault(hop.user, []).append(hop.label)
        for user, labels in keyless.items():
            password = self._prompter.password(user, tuple(labels)) if self._prompter else None
            if password is not None:
                self._passwords[user] = password

    def identities(self, hop: Hop) -> list[Identity]:
        """The keys for a server in the order they are tried."""
        files = [self._files[path] for path in self._paths(hop) if self._files.get(path)]
        chosen = [identity for identity in files if identity is not None]
        agent = [] if hop.identities_only else list(self._agent_keys.values())
        named = len([path for path in hop.identities if self._files.get(path)])
        ordered = [*chosen[:named], *agent, *chosen[named:]]
        return list({identity.key.asbytes(): identity for identity in reversed(ordered)}.values())[::-1]

    def password(self, user: str) -> str | None:
        return self._passwords.get(user)

    def why_not(self, hop: Hop) -> list[str]:
        """What was wrong with the keys that could not be tried."""
        return [self.notes[path] for path in ("agent", *self._paths(hop)) if path in self.notes]

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    @staticmethod
    def _paths(hop: Hop) -> tuple[str, ...]:
        defaults = () if hop.identities else tuple(str(Path(path).expanduser()) for path in DEFAULT_KEYS)
        return tuple(dict.fromkeys((*hop.identities, *defaults, *hop.fallback_identities)))

    def _load(self, path: str, *, ask: bool) -> Identity | None:
        held = self._held_by_agent(path)
        if held is not None:
            return held
        try:
            return Identity(path, _read(path, None))
        except FileNotFoundError:
            if ask:
                self.notes[path] = f"{path} does not exist"
        except Locked:
            if ask or not self._agent_keys:
                return self._unlocked(path)
            self._note_locked(path)
        except Unusable as error:
            self.notes[path] = f"{path}: {error}"
        return None

    def _held_by_agent(self, path: str) -> Identity | None:
        """The agent's key that belongs to a file (or is named by a public file): no passphrase is needed then."""
        for name in (path, f"{path}.pub"):
            blob = _public_blob(name)
            if blob in self._agent_keys:
                return self._agent_keys[blob]
        return None

    def _unlocked(self, path: str) -> Identity | None:
        passphrase = self._prompter.passphrase(path) if self._prompter else None
        if passphrase is None:
            self._note_locked(path)
            return None
        try:
            return Identity(path, _read(path, passphrase))
        except (Locked, Unusable):
            self.notes[path] = f"{path}: wrong passphrase"
            return None

    def _note_locked(self, path: str) -> None:
        self.notes[path] = f"{path} is locked by a passphrase: add it to the agent with `ssh-add {path}`"


class Locked(Exception):
    """The key file wants a passphrase."""


class Unusable(Exception):
    """The key file cannot be read as a key."""


def _read(path: str, passphrase: str | None) -> paramiko.PKey:
    try:
        password = None if passphrase is None else passphrase.encode()
        return paramiko.PKey.from_path(path, password)  # type: ignore[arg-type]  # cryptography wants bytes here
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from None
    except (paramiko.PasswordRequiredException, TypeError):
        raise Locked from None
    except Exception as error:  # whatever a broken file makes of the parsers of two libraries
        raise Unusable(f"not a usable private key ({type(error).__name__})") from None


def _public_blob(path: str) -> bytes | None:
    """The blob of a public key file; None when there is none."""
    try:
        with open(path, "rb") as file:
            fields = file.read(1 << 16).split()
        if len(fields) >= 2 and not fields[0].startswith(b"-"):
            return base64.b64decode(fields[1], validate=True)
    except (OSError, ValueError, binascii.Error):
        return None
    return None
