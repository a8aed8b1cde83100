"""Passwords, each for one account on one server, asked for when that server has said that it takes one."""

from __future__ import annotations

import threading
from collections import Counter

from ddpctl.errors import AuthRefused
from ddpctl.transport.limits import PASSWORD_TRIES
from ddpctl.transport.prompter import Prompter
from ddpctl.transport.route import Hop


class PasswordNeeded(Exception):
    """A login needs a password that nobody has given yet; ``refusal`` is what it is without one.

    The connection is closed while a person types: sshd's LoginGraceTime runs.
    """

    def __init__(self, refusal: AuthRefused) -> None:
        super().__init__()
        self.refusal = refusal


class Passwords:
    """What a person has typed. One question at a time, however many logins wait."""

    def __init__(self, prompter: Prompter | None) -> None:
        self._prompter = prompter
        self._asking = threading.Lock()
        self._known: dict[object, str] = {}
        self._tries: Counter[object] = Counter()
        self._last: dict[str, tuple[str, str]] = {}  # user -> (server, password): may be given again, if asked for

    def of(self, hop: Hop) -> str | None:
        return self._known.get(_account(hop))

    def wrong(self, hop: Hop, password: str) -> None:
        """The server did not take it."""
        with self._asking:
            if self._known.get(_account(hop)) == password:
                del self._known[_account(hop)]

    def ask(self, hop: Hop) -> bool:
        """True where there is a password now; False without a terminal, after Ctrl-D, and after three tries."""
        account = _account(hop)
        with self._asking:
            if account in self._known:  # another login of the same account has asked
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
