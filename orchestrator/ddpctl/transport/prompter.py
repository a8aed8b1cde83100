"""The person at the terminal, as the transport knows them."""

from __future__ import annotations

from typing import Protocol


class Prompter(Protocol):
    """Asks a person; None means: no answer, go on without. Called by one thread at a time."""

    def passphrase(self, path: str) -> str | None:
        """The passphrase of a key file; before any connection."""
        ...

    def password(self, account: str, same_as: str) -> str | None:
        """The password of an account; an empty answer means the one given for ``same_as``, where that is an account."""
        ...
