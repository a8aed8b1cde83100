"""The login protocol, message by message (RFC 4252): a question and its answer, on the thread that logs in.

paramiko's own client signs before it knows whether the server wants the key. It signs on the reading thread of the
connection, which an agent that waits for a person would stop. It hides which methods a server allows, and answers every
prompt with the password.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.common import (
    MSG_SERVICE_ACCEPT,
    MSG_USERAUTH_BANNER,
    MSG_USERAUTH_FAILURE,
    MSG_USERAUTH_INFO_REQUEST,
    MSG_USERAUTH_SUCCESS,
    cMSG_SERVICE_REQUEST,
    cMSG_USERAUTH_INFO_RESPONSE,
    cMSG_USERAUTH_REQUEST,
)

from ddpctl.transport.certificates import TAIL
from ddpctl.transport.identities import Identity
from ddpctl.transport.limits import LOGIN_LOOK_S, PROMPTS, SERVER_BANNER_LETTERS
from ddpctl.transport.link import Connection

_PK_OK = MSG_USERAUTH_INFO_REQUEST  # the same number: the method of the request decides
_SHA2 = ("rsa-sha2-512", "rsa-sha2-256")


class NoAnswer(Exception):
    """The server did not answer: it is silent (``silent``), or it hung up."""

    def __init__(self, silent: bool) -> None:
        super().__init__()
        self.silent = silent


@dataclass(frozen=True)
class AuthReply:
    """The server's reply to a request."""

    done: bool = False
    wanted: bool = False  # the server wants a signature by this key
    allowed: tuple[str, ...] = ()
    partial: bool = False  # accepted, but the server wants a further factor
    prompts: tuple[bool, ...] | None = None  # keyboard-interactive: whether each answer may be visible


class Userauth:
    """A login on a connection. paramiko uses it as the connection's ``auth_handler``."""

    def __init__(self, connection: Connection, user: str, patience: float) -> None:
        self._connection = connection
        self._user = user
        self._patience = patience
        self._answers: queue.SimpleQueue[tuple[int, paramiko.Message | None]] = queue.SimpleQueue()
        self._done = False
        self._service = False
        self.banner = ""
        connection.auth_handler = self  # type: ignore[assignment]  # paramiko calls the methods in the last section

    # -- requests of a login ------------------------------------------------------------------------------------------

    def none(self) -> AuthReply:
        """Request the method "none", to learn which methods the server takes."""
        return self._request("none")

    def offer(self, identity: Identity) -> AuthReply:
        """Ask whether the server wants this key."""
        return self._request("publickey", self._key(identity, signed=False))

    def sign(self, identity: Identity) -> AuthReply:
        """Send the key with a signature."""
        body = self._key(identity, signed=True)
        data = paramiko.Message()
        data.add_string(self._connection.session_id or b"")
        text = data.asbytes() + self._message("publickey", body).asbytes()
        signature = paramiko.Message()
        signature.add_string(identity.signer.sign_ssh_data(text, self._algorithm(identity).partition(TAIL)[0]))
        return self._request("publickey", lambda message: (body(message), message.add_bytes(signature.asbytes())))

    def password(self, password: str) -> AuthReply:
        def body(message: paramiko.Message) -> None:
            message.add_boolean(False)
            message.add_string(password.encode())

        return self._request("password", body)

    def interactive(self) -> AuthReply:
        """Begin keyboard-interactive."""
        return self._request("keyboard-interactive", lambda message: (message.add_string(""), message.add_string("")))

    def respond(self, *responses: str) -> AuthReply:
        message = paramiko.Message()
        message.add_byte(cMSG_USERAUTH_INFO_RESPONSE)
        message.add_int(len(responses))
        for response in responses:
            message.add_string(response.encode())
        return self._exchange(message, "keyboard-interactive")

    # -- messages ------------------------------------------------------------------------------------------------

    def _algorithm(self, identity: Identity) -> str:
        """Return the key's type; for RSA, a SHA-2 signature type that the server knows."""
        kind = identity.type
        if not kind.startswith("ssh-rsa"):
            return kind
        extensions: dict[str, bytes] = self._connection.server_extensions  # type: ignore[attr-defined]
        known = extensions.get("server-sig-algs", b"").decode("ascii", "replace")
        usable = [name for name in _SHA2 if name in known.split(",")] or list(_SHA2)
        return usable[0] + (TAIL if kind.endswith(TAIL) else "")

    def _key(self, identity: Identity, *, signed: bool) -> Callable[[paramiko.Message], Any]:
        def body(message: paramiko.Message) -> None:
            message.add_boolean(signed)
            message.add_string(self._algorithm(identity))
            message.add_string(identity.blob)

        return body

    def _message(self, method: str, body: Callable[[paramiko.Message], Any]) -> paramiko.Message:
        message = paramiko.Message()
        message.add_byte(cMSG_USERAUTH_REQUEST)
        message.add_string(self._user.encode())
        message.add_string("ssh-connection")
        message.add_string(method)
        body(message)
        return message

    def _request(self, method: str, body: Callable[[paramiko.Message], Any] = lambda _message: None) -> AuthReply:
        if not self._service:
            opening = paramiko.Message()
            opening.add_byte(cMSG_SERVICE_REQUEST)
            opening.add_string("ssh-userauth")
            self._send(opening)
            self._wait({MSG_SERVICE_ACCEPT})
            self._service = True
        return self._exchange(self._message(method, body), method)

    def _exchange(self, message: paramiko.Message, method: str) -> AuthReply:
        self._send(message)
        kind, answer = self._wait({MSG_USERAUTH_SUCCESS, MSG_USERAUTH_FAILURE, _PK_OK})
        if kind == MSG_USERAUTH_SUCCESS:
            return AuthReply(done=True)
        if kind == MSG_USERAUTH_FAILURE:
            allowed = answer.get_string().decode("ascii", "replace").split(",")
            return AuthReply(allowed=tuple(allowed), partial=answer.get_boolean())
        if method == "publickey":
            return AuthReply(wanted=True)
        if method != "keyboard-interactive":
            raise NoAnswer(silent=False)
        return AuthReply(prompts=_prompts(answer))

    def _send(self, message: paramiko.Message) -> None:
        try:
            self._connection._send_message(message)  # type: ignore[attr-defined]  # as paramiko's handlers do
        except (paramiko.SSHException, EOFError, OSError):
            raise NoAnswer(silent=False) from None

    def _wait(self, kinds: set[int]) -> tuple[int, paramiko.Message]:
        until = time.monotonic() + self._patience
        while time.monotonic() <= until:  # whatever else the server sends meanwhile
            try:
                kind, message = self._answers.get(timeout=LOGIN_LOOK_S)
            except queue.Empty:
                if not self._connection.is_active():
                    raise NoAnswer(silent=False) from None
                continue
            if message is None:
                raise NoAnswer(silent=False)
            if kind in kinds:
                return kind, message
        raise NoAnswer(silent=self._connection.is_active())

    # -- called by paramiko's reading thread
    # ----------------------------------------------------------------------------

    @property
    def _handler_table(self) -> dict[int, Callable[[paramiko.Message], None]]:
        kinds = (MSG_SERVICE_ACCEPT, MSG_USERAUTH_FAILURE, _PK_OK)
        table = {kind: lambda message, kind=kind: self._answers.put((kind, message)) for kind in kinds}
        return {**table, MSG_USERAUTH_SUCCESS: self._success, MSG_USERAUTH_BANNER: self._heard}

    def _success(self, message: paramiko.Message) -> None:
        self._done = True
        self._connection._auth_trigger()  # type: ignore[attr-defined]  # compression may begin now
        self._answers.put((MSG_USERAUTH_SUCCESS, message))

    def _heard(self, message: paramiko.Message) -> None:
        self.banner = (self.banner + message.get_string().decode("utf-8", "replace"))[:SERVER_BANNER_LETTERS]

    def abort(self) -> None:
        """Wake a waiting request: the connection has ended."""
        self._answers.put((0, None))

    def is_authenticated(self) -> bool:
        return self._done

    def get_username(self) -> str:
        return self._user


def _prompts(message: paramiko.Message) -> tuple[bool, ...]:
    for _ in ("title", "instructions", "language"):
        message.get_string()
    prompts = [(message.get_string(), message.get_boolean()) for _ in range(min(message.get_int(), PROMPTS))]
    return tuple(shown for _, shown in prompts)
