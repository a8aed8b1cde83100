"""The position of text in another tool's file, and errors with this position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddpctl.errors import InventoryError
from ddpctl.spec.draft import HostFault, host_entry
from ddpctl.spec.host import HostEntry
from ddpctl.spec.limits import MAX_COUNT
from ddpctl.spec.values import whole_number


@dataclass(frozen=True)
class Word:
    """A piece of text and its position (1-based)."""

    text: str
    file: str
    line: int
    column: int

    def part(self, start: int, end: int | None = None) -> Word:
        return Word(self.text[start:end], self.file, self.line, self.column + start)

    def strip(self) -> Word:
        """Return the word without the blanks around it."""
        return self.part(len(self.text) - len(self.text.lstrip()), len(self.text.rstrip()) or None)

    def split(self, mark: str) -> tuple[Word, Word | None]:
        """Return the parts before and after the first ``mark``."""
        cut = self.text.find(mark)
        return (self, None) if cut < 0 else (self.part(0, cut), self.part(cut + len(mark)))

    def fault(self, message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(message, file=self.file, line=self.line, column=self.column, hint=hint)

    def number(self, what: str, most: int, least: int = 1) -> int:
        """Return the word as a whole number.

        Raises:
            InventoryError: the word is not a whole number within these bounds.
        """
        number = whole_number(self.text, least, most)
        if number is None:
            raise self.fault(f"{what} {self.text[:40]!r} is not a number from {least} to {most}")
        return number

    def slots(self) -> int:
        return self.number("slots", MAX_COUNT)

    def port(self) -> int:
        return self.number("port", 65535)

    def host(self, name: str | None = None, **keys: Any) -> HostEntry:
        """Return the host with this name, or with this word as its name.

        Raises:
            InventoryError: such a host is not possible.
        """
        try:
            return host_entry(self.text if name is None else name, **keys)
        except HostFault as error:
            raise self.fault(str(error), error.hint) from None


def rows(text: str, file: str, comments: str) -> Iterator[Word]:
    """Yield the lines that are neither blank nor a comment, without the blanks around them."""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in comments:
            yield Word(stripped, file, number, len(line) - len(line.lstrip()) + 1)
