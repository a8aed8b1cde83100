"""Connections that OpenSSH's ssh holds, for hosts that need more than ddpctl's own client can do.

Such needs are second factors, GSSAPI, PKCS#11, security keys, and options of ssh_config that ddpctl does not follow. An
ssh process logs in and keeps the connection (ControlMaster). Each command is another ssh process, which uses that
connection through a socket. Where the user's ssh_config shares connections itself, its ControlMaster is used instead.

The process that keeps the connection runs ``cat`` on the host. If ddpctl dies, ``cat`` reads the end of its input, and
the connection ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ddpctl.errors import (
    AuthRefused,
    ConnectError,
    HostKeyChanged,
    HostKeyUnknown,
    LinkLost,
    NameUnknown,
    RemoteError,
    Unreachable,
)
from ddpctl.transport.asked_config import no_ssh_error, read_options, run_ssh
from ddpctl.transport.askpass import Askpass
from ddpctl.transport.bootstrap import last_line
from ddpctl.transport.identities import DEFAULT_KEYS
from ddpctl.transport.limits import (
    CHANNELS,
    DYING_S,
    EXIT_CODE_S,
    JUMP_DOWN_S,
    NOISE_BYTES,
    OPENSSH_LOGIN_S,
    POLL_S,
    PROXIES,
)
from ddpctl.transport.link import Slots
from ddpctl.transport.local import ProcessPipe
from ddpctl.transport.openssh import CommandLines, Options, share_options
from ddpctl.transport.prompts import Prompter, Say
from ddpctl.transport.route import Hop
from ddpctl.transport.ssh_words import first_value
from ddpctl_worker.wire.contract import BUSY

_KEEPER = "exec cat"
SSH_FAILED = 255  # ssh's exit status where it has no connection
_SECURITY_KEYS = ("~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519_sk")
_PARENT_LETTERS = 60  # of the folder above the sockets: a socket's path has 107 at most, and ssh appends a suffix


def needs_openssh(hop: Hop) -> bool:
    """Return whether only OpenSSH can reach this server, or the inventory says so."""
    if hop.transport == "paramiko":
        return False
    return any(each.transport == "openssh" or each.beyond_us or _uses_security_key(each) for each in hop.chain)


def _uses_security_key(hop: Hop) -> bool:
    if hop.identities:
        return any(_public_type(path).startswith("sk-") for path in hop.identities)
    if any(Path(path).expanduser().exists() for path in DEFAULT_KEYS):
        return False
    return any(Path(path).expanduser().exists() for path in _SECURITY_KEYS)


def _public_type(path: str) -> str:
    try:
        return Path(f"{path}.pub").read_text("ascii", "replace").partition(" ")[0]
    except OSError:
        return ""


class Master:
    """A connection that an ssh process holds. ``shared``: the options for ssh to use it."""

    def __init__(self, hop: Hop, keeper: ProcessPipe, lines: CommandLines, shared: Options) -> None:
        self.hop = hop
        self.shared = shared
        self._keeper, self._lines = keeper, lines
        self._slots = Slots()

    @property
    def alive(self) -> bool:
        return self._keeper.exit_code(0.0) < 0

    def has_died(self) -> bool:
        """Return whether the connection is dead, or dies within DYING_S."""
        return self._keeper.exit_code(DYING_S) >= 0

    @property
    def command_words(self) -> list[str]:
        """The command line that runs a command on the host, up to that command."""
        return self._lines.command(self.hop, self.shared)

    def start(self, line: str, timeout: float, reclaim: Callable[[], None]) -> SessionPipe:
        """Run a shell line in a new session.

        Raises:
            LinkLost: the connection is dead; no command ran.
            RemoteError: all sessions are in use for ``timeout`` seconds.
        """
        self.take_slot(timeout, reclaim)
        try:
            return SessionPipe(self, [*self.command_words, line])
        except BaseException:
            self.give_slot()
            raise

    def take_slot(self, timeout: float, reclaim: Callable[[], None]) -> None:
        """Wait for the right to open a session; raises as ``start``."""
        if not self.alive:
            raise self.lost_error()
        if not self._slots.take(timeout, reclaim):
            raise RemoteError(f"{CHANNELS} commands have been running there for {timeout:g} s", kind=BUSY)

    def give_slot(self) -> None:
        self._slots.give()

    @contextmanager
    def session(self, timeout: float, reclaim: Callable[[], None]) -> Iterator[list[str]]:
        """Yield ``command_words`` while there is a free session; raises as ``start``."""
        self.take_slot(timeout, reclaim)
        try:
            yield self.command_words
        finally:
            self.give_slot()

    def lost_error(self) -> LinkLost:
        said = last_line(self._keeper.stderr())
        return LinkLost(
            "the connection is lost" + (f" ({said})" if said else ""), hint="check the host and the network to it"
        )

    def close(self) -> None:
        self._keeper.close()


class SessionPipe(ProcessPipe):
    """The streams of a command on a connection that OpenSSH holds."""

    def __init__(self, master: Master, words: list[str]) -> None:
        self._master = master
        self._freed = threading.Lock()
        super().__init__(words)

    def recv(self, timeout: float) -> bytes | None:
        data = super().recv(timeout)
        if data == b"" and self.exit_code(EXIT_CODE_S) == SSH_FAILED:
            if self._master.has_died():
                raise self._master.lost_error()
            if b"Session open refused" in self.stderr():
                raise RemoteError(
                    "sshd opens no session", kind="no_session", hint="raise MaxSessions in sshd_config there"
                )
        return data

    def close(self, *, lost: bool = False) -> None:
        super().close(lost=lost)
        if self._freed.acquire(blocking=False):
            self._master.give_slot()


class _Jump:
    """The connection to a jump host, shared by all hosts behind it, or the error of the last try."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.master: Master | None = None
        self.error: ConnectError | None = None
        self.failed_at = 0.0


class Masters:
    """Opens the connections that OpenSSH holds for a fleet. ``prompter``: None where no person can be asked."""

    def __init__(self, config: str | None, prompter: Prompter | None, say: Say) -> None:
        self._lines = CommandLines(config)
        self._prompter, self._say = prompter, say
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(PROXIES)
        self._folder: Path | None = None
        self._askpass: Askpass | None = None
        self._number = 0
        self._jumps: defaultdict[Hop, _Jump] = defaultdict(_Jump)

    def connect(self, hop: Hop) -> Master:
        """Log in to ``hop``, through its jump hosts.

        Raises:
            ConnectError: with the cause and the next step; the caller adds the host.
        """
        jump = self._jump(hop.via).shared if hop.via is not None else {}
        with self._turn:
            return self._login(hop, jump)

    def through_jump(self, hop: Hop) -> Hop:
        """Return the way to ``hop`` by a ProxyCommand, over a connection to its jump host that OpenSSH holds.

        Raises:
            ConnectError: as ``connect``, about the jump host.
        """
        assert hop.via is not None
        command = self._lines.tunnel(hop, self._jump(hop.via).shared)
        return replace(hop, via=None, proxy_command=command)

    def _jump(self, hop: Hop) -> Master:
        with self._lock:
            jump = self._jumps[hop]
        with jump.lock:
            if jump.master is not None:
                if jump.master.alive:
                    return jump.master
                jump.master.close()
                jump.master = None
            if jump.error is None or time.monotonic() - jump.failed_at > JUMP_DOWN_S:
                try:
                    jump.master, jump.error = self.connect(hop), None
                    return jump.master
                except ConnectError as failure:
                    jump.error, jump.failed_at = failure, time.monotonic()
            raise type(jump.error)(f"jump host {hop.label}: {jump.error.message}", hint=jump.error.hint)

    def _login(self, hop: Hop, jump: Options) -> Master:
        asked = self._prompter is not None
        shared: Options = {}  # as ssh_config says
        control: str | None = None
        if not self._shares_by_itself(hop, jump):
            control = self._socket()
            shared = share_options(control)
        environment = self._questions().environment(hop.label) if asked else {}
        words = self._lines.login(hop, jump, ask=asked, control=control)
        keeper = _start([*words, _KEEPER], environment)
        try:
            self._await_login(hop, keeper)
        except BaseException:
            keeper.close()
            raise
        return Master(hop, keeper, self._lines, shared)

    def _await_login(self, hop: Hop, keeper: ProcessPipe) -> None:
        """Wait until ``cat`` on the host repeats a line. A person may answer questions meanwhile."""
        mark = f"ddpctl {secrets.token_hex(16)}\n".encode("ascii")
        keeper.send(memoryview(mark), POLL_S)
        heard = bytearray()
        until = time.monotonic() + OPENSSH_LOGIN_S
        while mark not in heard:
            data = keeper.recv(POLL_S)
            if data:
                heard += data
                if len(heard) > NOISE_BYTES:
                    raise Unreachable(
                        f"the login shell of {hop.login} prints more than {NOISE_BYTES >> 20} MiB",
                        hint="see what its profile (~/.bashrc) prints when it is not interactive",
                    )
            elif data is not None:
                keeper.exit_code(EXIT_CODE_S)
                raise read_refusal(hop, keeper.stderr().decode("utf-8", "replace"), asked=self._prompter is not None)
            if self._askpass is not None and self._askpass.is_asking(hop.label):
                until = time.monotonic() + OPENSSH_LOGIN_S
            elif time.monotonic() > until:
                said = last_line(keeper.stderr(), bytes(heard))
                raise Unreachable(
                    f"ssh has not logged in to {hop.login} after {OPENSSH_LOGIN_S:g} s" + (f": {said}" if said else ""),
                    hint=f"try `ssh {hop.label}`",
                )

    def _shares_by_itself(self, hop: Hop, jump: Options) -> bool:
        """Return whether ssh_config shares connections to this server (ControlMaster), or such a connection stands."""
        words = self._lines.login(hop, jump, ask=False, control=None)
        shown = read_options(words)
        if first_value(shown, "controlpath", "none") == "none":
            return False
        if first_value(shown, "controlmaster", "no") != "no":
            return True
        return run_ssh([words[0], "-O", "check", *words[1:]]).returncode == 0

    def _socket(self) -> str:
        folder = self._own_folder()
        with self._lock:
            self._number += 1
            return str(folder / f"m{self._number}")

    def _questions(self) -> Askpass:
        folder = self._own_folder()
        with self._lock:
            if self._askpass is None:
                assert self._prompter is not None
                self._askpass = Askpass(folder, self._prompter, self._say)
            return self._askpass

    def _own_folder(self) -> Path:
        """Return the folder for the sockets, which only this account can enter."""
        with self._lock:
            if self._folder is None:
                parent = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
                usable = len(parent) <= _PARENT_LETTERS and os.access(parent, os.W_OK)
                self._folder = Path(tempfile.mkdtemp(prefix="ddpctl-", dir=parent if usable else "/tmp"))
            return self._folder

    def close(self) -> None:
        """Close the jump hosts, take no more questions, and remove the sockets."""
        with self._lock:
            masters = [jump.master for jump in self._jumps.values() if jump.master is not None]
            folder, askpass = self._folder, self._askpass
            self._folder = self._askpass = None
        for master in masters:
            master.close()
        if askpass is not None:
            askpass.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _start(words: list[str], environment: dict[str, str]) -> ProcessPipe:
    try:
        return ProcessPipe(words, environment)
    except FileNotFoundError:
        raise no_ssh_error() from None


# What ssh prints -> the error that it means, the first match first (sshconnect.c and ssh.c of OpenSSH 7.6 to 10).
_KEY_CHANGED = re.compile(r"IDENTIFICATION HAS CHANGED|REVOKED HOST KEY|host key .* has changed", re.IGNORECASE)
_KEY_UNKNOWN = re.compile(r"Host key verification failed|No .* host key is known for", re.IGNORECASE)
_NAME_UNKNOWN = re.compile(r"Could not resolve hostname", re.IGNORECASE)
_DENIED = re.compile(r"Permission denied|Too many authentication failures|no more authentication", re.IGNORECASE)


def read_refusal(hop: Hop, said: str, *, asked: bool) -> ConnectError:
    """Return the error that ssh's words mean. ``asked``: whether ssh could ask a person."""
    words = last_line(said.encode())
    quoted = f": {words}" if words else ""
    if _KEY_CHANGED.search(said):
        return HostKeyChanged(
            f"the host key of {hop.known_as} has changed or is revoked{quoted}; "
            "somebody may be intercepting the connection",
            hint=f"compare it with the host's own key, and see `ssh {hop.label}`",
        )
    if _KEY_UNKNOWN.search(said):
        return HostKeyUnknown(f"the host key of {hop.known_as} is not known{quoted}", hint="run `ddpctl trust`")
    if _NAME_UNKNOWN.search(said):
        hint = f"check the name, or give `address:` for {hop.label} in the inventory"
        return NameUnknown(f"no address is known for {hop.address}", hint=hint)
    if _DENIED.search(said):
        alone = "" if asked else "; without a terminal no question could be asked"
        return AuthRefused(
            f"{hop.login} refuses the login{quoted}{alone}",
            hint=f"try `ssh {hop.label}`; a ControlMaster in ssh_config keeps a login for later commands",
        )
    return Unreachable(f"ssh has no connection to {hop.where}{quoted}", hint=f"try `ssh {hop.label}`")
