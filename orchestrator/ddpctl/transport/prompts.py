"""Messages and questions to the person at the terminal: banners, passphrases, passwords."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ddpctl.errors import AuthRefused
from ddpctl.transport.limits import PASSWORD_TRIES
from ddpctl.transport.route import Hop

Say = Callable[[str], None]


class Banners:
    """Shows each banner of a server once, without control characters."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._shown: set[str] = set()
        self._lock = threading.Lock()

    def heard(self, hop: Hop, banner: str) -> None:
        lines = (line.rstrip() for line in banner.expandtabs().splitlines())
        text = "\n".join("".join(letter for letter in line if letter.isprintable()) for line in lines).strip("\n")
        with self._lock:
            if not text or text in self._shown:
                return
            self._shown.add(text)
        self._say("\n".join(f"{hop.label} | {line}" for line in text.split("\n")))


class Prompter(Protocol):
    """Asks a person; None means that there is no answer. Called by one thread at a time."""

    def passphrase(self, path: str) -> str | None:
        """Ask for the passphrase of a key file; called before any connection."""
        ...

    def password(self, account: str, same_as: str) -> str | None:
        """Ask for the password of an account.

        If ``same_as`` is an account, an empty answer repeats the password that was typed for it.
        """
        ...

    def answer(self, question: str) -> str | None:
        """Ask a question of OpenSSH's ssh, such as the code of a second factor; the answer stays hidden."""
        ...


class OneQuestion:
    """Asks a person one question at a time, whichever part of the transport asks."""

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self._turn = threading.Lock()

    def passphrase(self, path: str) -> str | None:
        with self._turn:
            return self._prompter.passphrase(path)

    def password(self, account: str, same_as: str) -> str | None:
        with self._turn:
            return self._prompter.password(account, same_as)

    def answer(self, question: str) -> str | None:
        with self._turn:
            return self._prompter.answer(question)


class SecondFactor(AuthRefused):
    """The server accepted a key or a password, and wants another factor, which only OpenSSH can ask for."""


class PasswordNeeded(Exception):
    """A login needs a password that has not been typed yet. ``refusal`` is the error if it never is.

    The connection is closed while a person types, because sshd's LoginGraceTime runs.
    """

    def __init__(self, refusal: AuthRefused) -> None:
        super().__init__()
        self.refusal = refusal


class Passwords:
    """The typed passwords. Asks one question at a time, however many logins wait."""

    def __init__(self, prompter: Prompter | None) -> None:
        self._prompter = prompter
        self._asking = threading.Lock()
        self._known: dict[object, str] = {}
        self._tries: Counter[object] = Counter()
        self._last: dict[str, tuple[str, str]] = {}  # user -> (server, password), which the person may repeat

    def known_password(self, hop: Hop) -> str | None:
        return self._known.get(_account(hop))

    def forget(self, hop: Hop, password: str) -> None:
        """Forget a password that the server refused."""
        with self._asking:
            if self._known.get(_account(hop)) == password:
                del self._known[_account(hop)]

    def ask(self, hop: Hop) -> bool:
        """Ask unless a password is known. False: no terminal, Ctrl-D, or three tries."""
        account = _account(hop)
        with self._asking:
            if account in self._known:  # another login of the same account asked for it
                return True
            if self._prompter is None or self._tries[account] >= PASSWORD_TRIES:
                return False
            self._tries[account] += 1
            before, old = self._last.get(hop.user, ("", ""))
            again = before if before != hop.login else ""
            typed = self._prompter.password(hop.login, again)
            if typed is None:
                self._prompter = None
                return False
            password = typed or (old if again else "")
            self._known[account], self._last[hop.user] = password, (hop.login, password)
            return True


def _account(hop: Hop) -> tuple[str, str, int]:
    return hop.user, hop.address, hop.port
