"""A client of the ssh-agent that lists keys and asks for signatures, each with a deadline.

paramiko's own client waits for ever, reads only $SSH_AUTH_SOCK, and asks for the signature of a certificate with the
plain key. Requests go one at a time: an agent may ask a person to touch a token or to confirm. The protocol is
draft-miller-ssh-agent.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from ddpctl.errors import AgentSilent
from ddpctl.transport.certificates import Fields, pack_strings
from ddpctl.transport.limits import AGENT_BYTES, AGENT_LIST_S, AGENT_SIGN_S, CLOSE_S

_LIST, _LISTED, _SIGN, _SIGNED = 11, 12, 13, 14
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}


class AgentBusy(Exception):
    """Another login's request is still with the agent, which is asking a person. A new login afterwards may succeed."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent


class AgentRefused(Exception):
    """The agent does not sign with this key, or the person refused."""


@dataclass(frozen=True)
class AgentKey:
    """A key or a certificate that the agent holds."""

    agent: Agent
    blob: bytes
    comment: str

    def sign_ssh_data(self, data: bytes, algorithm: str) -> bytes:
        return self.agent.sign(self.blob, data, algorithm)


class Agent:
    """The agent at a socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.turn = threading.RLock()  # held during a request, and during a new login that needs the agent
        self._sock: socket.socket | None = None
        self._dead = ""

    def keys(self) -> list[AgentKey]:
        """Return the keys and certificates that the agent holds.

        Raises:
            AgentSilent: the agent does not answer in time.
            OSError: no agent listens at the socket.
        """
        with self.turn:
            answer = Fields(self._ask(bytes([_LIST]), AGENT_LIST_S, "does not list its keys"))
        try:
            if answer.number(1) != _LISTED:
                return []
            return [AgentKey(self, answer.string(), answer.text()) for _ in range(answer.number(4))]
        except ValueError:
            raise ConnectionError("the agent's answer is damaged") from None

    def sign(self, blob: bytes, data: bytes, algorithm: str) -> bytes:
        """Return a signature of ``data``. A person may have to allow it.

        Raises:
            AgentRefused: the agent gives no signature.
            AgentSilent: the agent does not answer in time.
            AgentBusy: another login's request has waited for a person for long.
        """
        if not self.turn.acquire(timeout=AGENT_LIST_S):
            raise AgentBusy(self)
        try:
            flags = _FLAGS.get(algorithm.partition("-cert-")[0], 0)
            request = bytes([_SIGN]) + pack_strings(blob) + pack_strings(data) + flags.to_bytes(4, "big")
            answer = Fields(
                self._ask(request, AGENT_SIGN_S, "does not sign; is a key waiting for a touch or a confirmation?")
            )
            if answer.number(1) != _SIGNED:
                raise AgentRefused
            return answer.string()
        except (OSError, ValueError) as error:  # a damaged answer counts as a refusal
            raise AgentRefused(str(error)) from None
        finally:
            self.turn.release()

    def close(self) -> None:
        """Close the connection for good. Threads that wait for an answer get an error."""
        self._dead = self._dead or f"the connection to the agent at {self.path} is closed"
        sock = self._sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self.turn.acquire(timeout=CLOSE_S):
            self._drop()
            self.turn.release()

    def _ask(self, request: bytes, patience: float, trouble: str) -> bytes:
        if self._dead:
            raise self._silent()
        until = time.monotonic() + patience
        try:
            if self._sock is None:
                self._sock = _connected(self.path, patience)
            self._sock.settimeout(patience)
            self._sock.sendall(pack_strings(request))
            size = int.from_bytes(self._read(4, until), "big")
            if size > AGENT_BYTES:
                raise ConnectionError("the agent's answer is too long")
            return self._read(size, until)
        except TimeoutError:  # a late answer would be read as the answer to another question
            self._dead = f"the agent at {self.path} {trouble} ({patience:g} s)"
            self._drop()
            raise self._silent() from None
        except OSError:
            self._drop()
            raise

    def _silent(self) -> AgentSilent:
        return AgentSilent(
            self._dead, hint="confirm in time, or unlock or restart it; `IdentityAgent none` in ssh_config skips it"
        )

    def _read(self, size: int, until: float) -> bytes:
        assert self._sock is not None
        data = b""
        while len(data) < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            part = self._sock.recv(size - len(data))
            if not part:
                raise ConnectionError("the agent closed the connection")
            data += part
        return data

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _connected(path: str, patience: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(patience)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
