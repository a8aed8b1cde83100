"""The login on an open connection: key exchange, check of the host key, authentication. paramiko's errors end here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import paramiko

from ddpctl.errors import AuthRefused, ConnectError, HostKeyChanged, HostKeyUnknown, LinkLost, Unreachable
from ddpctl.transport import certificates
from ddpctl.transport.agent import AgentRefused
from ddpctl.transport.dial import Dropped
from ddpctl.transport.identities import Identity, KeyRing
from ddpctl.transport.known_hosts import SSH_PORT, Key, KnownHosts, Verdict, forget
from ddpctl.transport.limits import AUTH_S, CHANNEL_S, EMPTY_QUESTIONS, FIRST_BYTE_S, HANDSHAKE_S
from ddpctl.transport.link import Connection
from ddpctl.transport.prompts import PasswordNeeded, SecondFactor
from ddpctl.transport.route import Hop
from ddpctl.transport.userauth import AuthReply, NoAnswer, Userauth

# Without a handler paramiko's log would be printed on the user's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# GCM needs a single pass over the data; the other modes need a cipher and a MAC.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")

JudgeKey = Callable[[Hop, Key], None]


def handshake(hop: Hop, sock: Any, known: KnownHosts, judge: JudgeKey | None = None) -> Connection:
    """Exchange keys on ``sock`` and check the server's key. ``judge`` replaces the check against ``known``.

    Raises:
        ConnectError: no common algorithm, no answer, or a host key that is not trusted.
        Dropped: the server hung up at once.
    """
    connection = Connection(sock)
    options = connection.get_security_options()
    options.ciphers = [cipher for cipher in _CIPHERS if cipher in options.ciphers]
    connection.preferred_keys = known.algorithms(hop.key_name, hop.key_port)
    connection.banner_timeout = FIRST_BYTE_S
    connection.handshake_timeout = HANDSHAKE_S
    connection.channel_timeout = CHANNEL_S
    done = threading.Event()
    try:
        connection.start_client(event=done)
        done.wait(FIRST_BYTE_S + HANDSHAKE_S + 1)
        if not done.is_set() or not connection.is_active():
            raise _no_agreement(hop, connection)
        shown = _shown(connection)
        if judge is not None:
            judge(hop, shown)
        else:
            _trust(hop, shown, known)
    except BaseException:
        connection.hang_up()
        raise
    return connection


def _no_agreement(hop: Hop, connection: Connection) -> Exception:
    """Return the error for a key exchange that did not finish."""
    cause = connection.get_exception()
    if not connection.remote_version:
        return Dropped()
    if cause is None or isinstance(cause, EOFError):
        what = "closed the connection" if cause is not None else f"did not answer for {HANDSHAKE_S:g} s"
        return Unreachable(f"{hop.where} {what} during the key exchange", hint="see the log of sshd there")
    if isinstance(cause, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"{hop.where}: no algorithm in common ({cause})", hint="update sshd there")
    return Unreachable(f"{hop.where}: the key exchange failed ({cause})", hint="see the log of sshd there")


def _shown(connection: Connection) -> Key:
    """Return the server's key and the certificate that came with it."""
    shown = connection.get_remote_server_key()
    blob = getattr(shown, "public_blob", None)
    try:
        certificate = certificates.parse(blob.key_blob) if blob is not None else None
    except ValueError:
        certificate = None
    if certificate is not None and certificate.key != shown.asbytes():  # the key exchange proved only the shown key
        certificate = None
    return Key(shown.get_name(), shown.asbytes(), certificate)


def _trust(hop: Hop, key: Key, known: KnownHosts) -> None:
    """Check ``key`` against known_hosts.

    Raises:
        HostKeyChanged: the key is revoked, or known_hosts has another key.
        HostKeyUnknown: known_hosts has no key of the server.
    """
    verdict, entries = known.judge_key(hop.key_name, hop.key_port, key)
    name = hop.known_as
    if verdict is Verdict.REVOKED:
        raise HostKeyChanged(
            f"the host key of {name} is revoked ({key.sha256}, {entries[0].place})",
            hint="do not log in; give the host a new key and remove the old one from known_hosts",
        )
    if verdict is Verdict.CHANGED:
        was = ", ".join(f"{entry.key.type} {entry.key.sha256} ({entry.place})" for entry in entries[:3])
        raise HostKeyChanged(
            f"the host key of {name} has changed: it shows {key.type} {key.sha256}, known_hosts has {was}; "
            "somebody may be intercepting the connection",
            hint="if the host was really reinstalled, remove the old key with "
            + " and ".join(f"`{command}`" for command in forget(name, [entry.place for entry in entries])),
        )
    if verdict is Verdict.UNKNOWN:
        raise HostKeyUnknown(
            f"the host key of {name} is not known ({key.type} {key.sha256}){_but(hop, key, known)}",
            hint="run `ddpctl trust`",
        )


def _but(hop: Hop, key: Key, known: KnownHosts) -> str:
    """Return more about an unknown key: its certificate, and lines of known_hosts that could not be read."""
    said = []
    authorities = known.authorities(hop.key_name, hop.key_port)
    if key.certificate is not None:
        why = key.certificate.why_not(hop.key_name) or "no @cert-authority line has its authority"
        said.append(f"its certificate is not accepted: {why}")
    elif authorities:
        said.append(f"it comes without a certificate of the authority in {authorities[0].place}")
    said += known.notes[:1]
    return "".join(f"; {words}" for words in said)


def authenticate(hop: Hop, connection: Connection, ring: KeyRing, heard: Callable[[Hop, str], None]) -> None:
    """Log in with the first accepted identity, or with a password that was typed for this server.

    Raises:
        AuthRefused: the server accepts no identity.
        PasswordNeeded: the server would take a password.
        AgentSilent, AgentBusy: see agent.py.
        Unreachable: the server does not answer.
    """
    login = _Login(hop, Userauth(connection, hop.user, AUTH_S), ring)
    try:
        login.run()
    except NoAnswer as error:
        if error.silent:
            raise Unreachable(f"{hop.where} did not answer the login within {AUTH_S:g} s") from None
        raise _ended_in_login(hop, login.tried) from None
    finally:
        heard(hop, login.auth.banner)


class _Login:
    """The state of a login: the identities tried, and the methods that the server still takes."""

    def __init__(self, hop: Hop, auth: Userauth, ring: KeyRing) -> None:
        self._hop, self._ring = hop, ring
        self.auth = auth
        self.tried: list[str] = []
        self._allowed: tuple[str, ...] = ()

    def run(self) -> None:
        answer = self.auth.none()
        self._allowed = answer.allowed
        if answer.done:
            return
        if self._takes("publickey") and any(self._key(identity) for identity in self._ring.identities(self._hop)):
            return
        silent = self._ring.silent_agent(self._hop)
        if silent is not None:  # its keys might have been accepted
            raise type(silent)(silent.message, hint=silent.hint)
        if not (self._takes("password") or self._takes("keyboard-interactive")):
            raise self._refused()
        password = self._ring.passwords.known_password(self._hop)
        if password is None:
            if self._takes("password") or self._begin().prompts is not None:
                raise PasswordNeeded(self._refused())
            raise self._refused()
        if not self._password(password):
            self._ring.passwords.forget(self._hop, password)
            raise PasswordNeeded(self._refused())

    def _takes(self, method: str) -> bool:
        return method in self._hop.methods and method in self._allowed

    def _key(self, identity: Identity) -> bool:
        """Try a key; True: logged in. Ask the server before signing, because a signature may cost a touch."""
        self.tried.append(identity.label)
        answer = self.auth.offer(identity)
        if answer.wanted:
            try:
                answer = self.auth.sign(identity)
            except AgentRefused:
                self.tried[-1] += ", which the agent does not sign with"
                return False
        return self._judged(answer, identity.label)

    def _password(self, password: str) -> bool:
        self.tried.append("the password")
        if self._takes("password"):
            return self._judged(self.auth.password(password), "the password")
        answer = self._begin()
        if answer.prompts is not None:
            answer = self._quiet(self.auth.respond(password))
            if answer.prompts is not None:  # another question must not get the password
                raise self._second_factor("the password", "an answer")
        return self._judged(answer, "the password")

    def _begin(self) -> AuthReply:
        """Start keyboard-interactive and return its first question. Most servers list it; many then ask nothing."""
        answer = self._quiet(self.auth.interactive())
        if answer.prompts not in (None, (False,)):  # a password is a single question with a hidden answer
            raise self._second_factor("no password alone", "an answer")
        return answer

    def _quiet(self, answer: AuthReply) -> AuthReply:
        """Skip messages without a question. After the last the answer is as if the server refused the method."""
        for _ in range(EMPTY_QUESTIONS):
            if answer.prompts != ():
                return answer
            answer = self.auth.respond()
        return AuthReply(allowed=self._allowed)

    def _judged(self, answer: AuthReply, label: str) -> bool:
        if answer.partial:
            raise self._second_factor(label, " or ".join(answer.allowed))
        self._allowed = answer.allowed or self._allowed
        return answer.done

    def _second_factor(self, label: str, factor: str) -> SecondFactor:
        return SecondFactor(
            f"{self._hop.where} takes {label} of {self._hop.user}, but also wants {factor}",
            hint="remove `transport: paramiko`: OpenSSH's ssh can ask for a second factor",
        )

    def _refused(self) -> AuthRefused:
        why = "".join(f"; {note}" for note in self._ring.why_not(self._hop))
        wants = f" (it takes: {', '.join(self._allowed)})" if self._allowed else ""
        if not self.tried:
            return AuthRefused(
                f"there is no key to log in to {self._hop.login}{wants}{why}",
                hint="start an agent with your key (`ssh-add`), or name one with `identity_file:`",
            )
        port = f"-p {self._hop.port} " if self._hop.port != SSH_PORT else ""
        return AuthRefused(
            f"{self._hop.login} accepts none of: {', '.join(self.tried)}{wants}{why}",
            hint=f"run `ssh-copy-id {port}{self._hop.user}@{self._hop.address}`, "
            "or correct `user:` or `identity_file:`",
        )


def _ended_in_login(hop: Hop, tried: list[str]) -> ConnectError:
    if len(tried) > 1:
        return AuthRefused(
            f"{hop.login} closed the connection after {len(tried)} keys: {', '.join(tried)}",
            hint="name the right key with `identity_file:` and set `IdentitiesOnly yes` in ssh_config",
        )
    return LinkLost(f"{hop.where} closed the connection during the login", hint="see the log of sshd there")
