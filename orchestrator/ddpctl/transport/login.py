"""From an open connection to a login: key exchange, the host key, our keys. paramiko's errors end here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko

from ddpctl.errors import AuthRefused, ConnectError, HostKeyChanged, HostKeyUnknown, LinkLost, Unreachable
from ddpctl.transport.connection import Connection
from ddpctl.transport.dial import Dropped
from ddpctl.transport.identities import KeyRing
from ddpctl.transport.known_hosts import Key, KnownHosts, Verdict, entry_name, order
from ddpctl.transport.limits import AUTH_S, CHANNEL_S, FIRST_BYTE_S, HANDSHAKE_S
from ddpctl.transport.route import Hop

# Without a handler of its own paramiko's log would be printed on the user's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# GCM needs one pass over the data where the others need a cipher and a MAC.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")

JudgeKey = Callable[[Hop, Key], None]


def handshake(hop: Hop, sock: Any, known: KnownHosts, judge: JudgeKey | None = None) -> Connection:
    """Key exchange on ``sock``; the server's key has been judged when this returns.

    Raises:
        ConnectError: no agreement, no answer, or a host key that is not to be trusted. Dropped: hung up at once.
    """
    connection = Connection(sock)
    options = connection.get_security_options()
    options.ciphers = [cipher for cipher in _CIPHERS if cipher in options.ciphers]
    options.key_types = order(known.types(hop.key_name, hop.port))
    connection.banner_timeout = FIRST_BYTE_S
    connection.handshake_timeout = HANDSHAKE_S
    connection.auth_timeout = AUTH_S
    connection.channel_timeout = CHANNEL_S
    done = threading.Event()
    try:
        connection.start_client(event=done)
        done.wait(FIRST_BYTE_S + HANDSHAKE_S + 1)
        if not done.is_set() or not connection.is_active():
            raise _no_agreement(hop, connection)
        shown = connection.get_remote_server_key()
        key = Key(shown.get_name(), shown.asbytes())
        (judge or trusted(known))(hop, key)
    except BaseException:
        connection.hang_up()
        raise
    return connection


def _no_agreement(hop: Hop, connection: Connection) -> Exception:
    """Why the key exchange did not come to its end."""
    cause = connection.get_exception()
    if not connection.remote_version:
        return Dropped()
    if cause is None or isinstance(cause, EOFError):
        what = "hangs up" if cause is not None else f"is silent for {HANDSHAKE_S:g} s"
        return Unreachable(f"{hop.where} {what} in the key exchange", hint="see the log of sshd there")
    if isinstance(cause, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"{hop.where}: no algorithm in common ({cause})", hint="update sshd there")
    return Unreachable(f"{hop.where}: the key exchange failed ({cause})", hint="see the log of sshd there")


def trusted(known: KnownHosts) -> JudgeKey:
    """Accept a key that known_hosts knows, and no other."""

    def judge(hop: Hop, key: Key) -> None:
        verdict, entries = known.judge(hop.key_name, hop.port, key)
        name = entry_name(hop.key_name, hop.port)
        if verdict is Verdict.REVOKED:
            raise HostKeyChanged(
                f"the host key of {name} is revoked ({key.sha256}, {entries[0].place})",
                hint="do not log in; give the host a new key and remove the old one from known_hosts",
            )
        if verdict is Verdict.CHANGED:
            was = ", ".join(f"{entry.key.type} {entry.key.sha256} ({entry.place})" for entry in entries[:3])
            raise HostKeyChanged(
                f"the host key of {name} has changed: it shows {key.type} {key.sha256}, known is {was}; "
                "somebody may be listening in",
                hint=f"if the host was really reinstalled, remove the old key with `ssh-keygen -R '{name}'`",
            )
        if verdict is Verdict.UNKNOWN:
            raise HostKeyUnknown(
                f"the host key of {name} is not known ({key.type} {key.sha256})", hint="run `ddpctl trust`"
            )

    return judge


def authenticate(hop: Hop, connection: Connection, ring: KeyRing) -> None:
    """Log in with the first key that is accepted, or with the password that was asked for before.

    Raises:
        AuthRefused: none is. Unreachable: no answer.
    """
    tried: list[str] = []
    allowed: list[str] = []
    password = ring.password(hop.user)
    attempts: list[tuple[str, Callable[[], list[str]]]] = [
        (identity.label, lambda key=identity.key: connection.auth_publickey(hop.user, key))  # type: ignore[misc]
        for identity in ring.identities(hop)
    ]
    if password is not None:
        attempts.append(("the password", lambda: connection.auth_password(hop.user, password)))
    if not attempts:
        attempts.append(("", lambda: connection.auth_none(hop.user)))
    for label, attempt in attempts:
        begun = time.monotonic()
        try:
            further = attempt()
        except paramiko.BadAuthenticationType as error:
            allowed = list(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError) as error:
            if time.monotonic() - begun >= AUTH_S:
                raise Unreachable(f"{hop.where} does not answer our login for {AUTH_S:g} s") from None
            if not connection.is_active():
                raise _ended_in_login(hop, [*tried, label], error) from None
        else:
            if not further:
                return
            raise AuthRefused(
                f"{hop.where} takes {label} of {hop.user} and wants {' or '.join(further)} besides",
                hint="ddpctl cannot answer a second factor: use an account or a jump host without one",
            )
        if label:
            tried.append(label)
    raise _refused(hop, tried, allowed, ring)


def _refused(hop: Hop, tried: list[str], allowed: list[str], ring: KeyRing) -> AuthRefused:
    who = f"{hop.user}@{hop.address}" + (f" (port {hop.port})" if hop.port != 22 else "")
    why = "".join(f"; {note}" for note in ring.why_not(hop))
    wants = f" (it takes: {', '.join(allowed)})" if allowed else ""
    if not tried:
        return AuthRefused(
            f"there is no key to log in to {who}{wants}{why}",
            hint="start an agent with your key (`ssh-add`), or name one with `identity_file:`",
        )
    return AuthRefused(
        f"{who} accepts none of: {', '.join(tried)}{wants}{why}",
        hint=f"run `ssh-copy-id {hop.user}@{hop.address}`, or correct `user:` or `identity_file:`",
    )


def _ended_in_login(hop: Hop, tried: list[str], error: Exception) -> ConnectError:
    if len(tried) > 1:
        return AuthRefused(
            f"{hop.user}@{hop.address} hung up after {len(tried)} keys: {', '.join(tried)}",
            hint="name the right key with `identity_file:` and set `IdentitiesOnly yes` in ssh_config",
        )
    return LinkLost(
        f"{hop.where} hung up during the login ({error or type(error).__name__})", hint="see the log of sshd there"
    )
