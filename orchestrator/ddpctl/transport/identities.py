"""The user's identities: keys and certificates of agents and files, loaded once for a whole fleet."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import paramiko

from ddpctl.errors import AgentSilent
from ddpctl.transport import certificates
from ddpctl.transport.agent import Agent, AgentKey
from ddpctl.transport.prompts import Passwords, Prompter
from ddpctl.transport.route import Hop

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


class Signer(Protocol):
    """A private key, in a file or in an agent."""

    def sign_ssh_data(self, data: bytes, algorithm: str) -> Any: ...


@dataclass(frozen=True)
class Identity:
    """A key or certificate to log in with: the public part for the server, and the signer.

    ``label`` names the identity in messages.
    """

    label: str
    signer: Signer = field(repr=False)
    blob: bytes = field(repr=False)  # a public key or a certificate

    @property
    def type(self) -> str:
        return certificates.wire_type(self.blob)


class KeyRing:
    """All identities of a fleet. ``unlock`` is called once, on the main thread, before the fan-out."""

    def __init__(self, prompter: Prompter | None = None) -> None:
        self._prompter = prompter
        self.passwords = Passwords(prompter)
        self._agents: dict[str, Agent] = {}
        self._held: dict[str, dict[bytes, Identity]] = {}  # by socket of the agent
        self._files: dict[str, Identity | None] = {}
        self._certificates: dict[str, bytes | None] = {}
        self._notes: dict[str, str] = {}  # path -> why its key cannot be used
        self._silent: dict[str, AgentSilent] = {}

    def unlock(self, hops: Iterable[Hop]) -> None:
        """Load every key that the hops name; ask for each passphrase once."""
        for hop in hops:
            if hop.agent and hop.agent not in self._agents:
                self._ask_agent(hop.agent)
            for path in self._paths(hop):
                if self._in_agent(hop, path) is None and path not in self._files:
                    named = path in hop.identities
                    self._files[path] = self._load(path, named=named, ask=named or not self._held_by(hop))
                self._certificate(_certificate_path(path))
            for path in hop.certificates:
                self._certificate(path)

    def identities(self, hop: Hop) -> list[Identity]:
        """Return the identities for a server in order: certificates, named keys, agent, default key files."""
        named = [found for path in hop.identities for found in self._of_path(hop, path)]
        others = [
            found for path in self._paths(hop) if path not in hop.identities for found in self._of_path(hop, path)
        ]
        agent = [] if hop.identities_only else list(self._held_by(hop).values())
        held = [identity for identity in others if isinstance(identity.signer, AgentKey)]
        known = [*named, *held, *agent, *others]
        chosen = [found for path in hop.certificates for found in self._certified(path, known)]
        ordered = [*chosen, *known]
        return list({identity.blob: identity for identity in reversed(ordered)}.values())[::-1]

    def why_not(self, hop: Hop) -> list[str]:
        """Return why some keys could not be tried, a note for each."""
        paths = (hop.agent or "", *self._paths(hop), *hop.certificates)
        return [self._notes[path] for path in paths if path in self._notes]

    def silent_agent(self, hop: Hop) -> AgentSilent | None:
        """Return the error of the hop's agent if it did not list its keys."""
        return self._silent.get(hop.agent or "")

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()

    # -- agents --------------------------------------------------------------------------------------------------

    def _ask_agent(self, path: str) -> None:
        agent = self._agents[path] = Agent(path)
        self._held[path] = {}
        try:
            keys = agent.keys()
        except AgentSilent as error:
            self._silent[path], self._notes[path] = error, error.message
        except OSError as error:
            self._notes[path] = f"the agent at {path} cannot be asked ({error.strerror or error})"
        else:
            for key in keys:
                try:
                    name = key.comment or certificates.wire_type(key.blob)
                except ValueError:
                    continue
                self._held[path][key.blob] = Identity(f"{name} (agent)", key, key.blob)

    def _held_by(self, hop: Hop) -> dict[bytes, Identity]:
        return self._held.get(hop.agent or "", {})

    def _in_agent(self, hop: Hop, path: str) -> Identity | None:
        """Return the agent's key for a key file or its public file: such a key needs no passphrase."""
        held = self._held_by(hop)
        blobs = (_public_blob(name) for name in (path, f"{path}.pub")) if held else ()
        return next((held[blob] for blob in blobs if blob in held), None)

    # -- files ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _paths(hop: Hop) -> tuple[str, ...]:
        defaults = () if hop.identities else tuple(str(Path(path).expanduser()) for path in DEFAULT_KEYS)
        return tuple(dict.fromkeys((*hop.identities, *defaults, *hop.fallback_identities)))

    def _of_path(self, hop: Hop, path: str) -> list[Identity]:
        """Return the key of a file, after the certificate beside it unless the configuration names certificates."""
        key = self._in_agent(hop, path) or self._files.get(path)
        beside = None if hop.certificates else _certificate_path(path)
        mine = [key] if key else []
        return [*self._certified(beside, [*mine, *self._held_by(hop).values()]), *mine]

    def _certified(self, path: str | None, keys: Iterable[Identity]) -> list[Identity]:
        """Return the certificate in a file, with the key that it certifies."""
        blob = self._certificates.get(path or "")
        if blob is None:
            return []
        certificate = certificates.parse(blob)
        age = " (expired)" if certificate.expired(time.time()) else ""
        return [Identity(f"{path}{age}", key.signer, blob) for key in keys if key.blob == certificate.key][:1]

    def _certificate(self, path: str) -> None:
        if path in self._certificates:
            return
        self._certificates[path] = blob = _public_blob(path)
        try:
            if blob is not None:
                certificates.parse(blob)
        except ValueError as error:
            self._certificates[path] = None
            self._notes[path] = f"{path}: {error}"

    def _load(self, path: str, *, named: bool, ask: bool) -> Identity | None:
        try:
            return _identity(path, None)
        except FileNotFoundError:
            if named:
                self._notes[path] = f"{path} does not exist"
        except Locked:
            if ask:
                return self._unlocked(path)
            self._note_locked(path)
        except Unusable as error:
            self._notes[path] = f"{path}: {error}"
        return None

    def _unlocked(self, path: str) -> Identity | None:
        passphrase = self._prompter.passphrase(path) if self._prompter else None
        if passphrase is None:
            self._note_locked(path)
            return None
        try:
            return _identity(path, passphrase)
        except (Locked, Unusable, FileNotFoundError):
            self._notes[path] = f"{path}: wrong passphrase"
            return None

    def _note_locked(self, path: str) -> None:
        self._notes[path] = f"{path} is locked by a passphrase: add it to the agent with `ssh-add {path}`"


class Locked(Exception):
    """The key file needs a passphrase."""


class Unusable(Exception):
    """The file does not hold a readable key."""


def _identity(path: str, passphrase: str | None) -> Identity:
    key = _read(path, passphrase)
    return Identity(path, key, key.asbytes())


def _read(path: str, passphrase: str | None) -> paramiko.PKey:
    """Read a private key. (PKey.from_path would refuse it because of a damaged certificate beside it.)"""
    trouble: Exception | None = None
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key_file(path, passphrase)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unusable(error.strerror or str(error)) from None
        except paramiko.PasswordRequiredException:
            raise Locked from None
        except Exception as error:  # a broken file can raise anything in the parsers of two libraries
            trouble = trouble or error
    raise Unusable(f"not a usable private key ({type(trouble).__name__})")


def _certificate_path(path: str) -> str:
    return f"{path.removesuffix('.pub')}-cert.pub"


def _public_blob(path: str) -> bytes | None:
    """Return the blob of a public key file, or None if there is no such file."""
    with suppress(OSError, ValueError), open(path, "rb") as file:
        fields = file.read(1 << 16).split()
        if len(fields) >= 2 and not fields[0].startswith(b"-"):
            return base64.b64decode(fields[1], validate=True)
    return None
