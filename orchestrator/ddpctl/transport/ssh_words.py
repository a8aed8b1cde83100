"""The words of an ssh_config: how OpenSSH cuts a line, its patterns, and what ``%h``, ``${VAR}`` and ``~`` become."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ddpctl.errors import UsageError

_LINE = re.compile(r"[ \t]*([A-Za-z0-9]+)(?:[ \t]*=[ \t]*|[ \t]+)(.*)")
_TOKEN = re.compile(r"%(.)")
_WILD = re.compile(r"[*?!]")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class Patterns:
    """The patterns of one Host line, of one criterion of a Match line, or of a line of known_hosts.

    Letters count as they are, as OpenSSH reads its configuration; who wants otherwise lowers both sides.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._literal: set[str] = set()
        self._positive: list[re.Pattern[str]] = []
        self._negative: list[re.Pattern[str]] = []
        for word in words:
            if word.startswith("!"):
                self._negative.append(compiled(word[1:]))
            elif _WILD.search(word):
                self._positive.append(compiled(word))
            else:
                self._literal.add(word)

    def match(self, names: Sequence[str]) -> bool:
        """True when a name fits and none is excluded."""
        if any(pattern.fullmatch(name) for pattern in self._negative for name in names):
            return False
        if not self._literal.isdisjoint(names):
            return True
        return any(pattern.fullmatch(name) for pattern in self._positive for name in names)


def compiled(pattern: str) -> re.Pattern[str]:
    """``*`` and ``?``, as everywhere in OpenSSH."""
    text = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.compile(text, re.DOTALL)


def keyword(line: str) -> tuple[str, str] | None:
    """A line's keyword in small letters and the rest of the line; None where it is no line of an ssh_config."""
    found = _LINE.fullmatch(line.rstrip(" \t\r\n\f"))
    return (found.group(1).lower(), found.group(2)) if found and found.group(2) else None


def words(rest: str) -> list[str]:
    """A line's arguments: either quote keeps blanks, a backslash keeps a quote, ``#`` begins a comment.

    Raises:
        ValueError: a quote is not closed.
    """
    found: list[str] = []
    at = 0
    while at < len(rest):
        if rest[at] in " \t":
            at += 1
        elif rest[at] == "#":
            break
        else:
            word, at = _word(rest, at)
            found.append(word)
    return found


def _word(rest: str, at: int) -> tuple[str, int]:
    """The word that begins at ``at``, and where it ends."""
    word, quote = "", ""
    while at < len(rest):
        letter, following = rest[at], rest[at + 1 : at + 2]
        if letter == "\\" and following and (following in "'\"\\" or (not quote and following == " ")):
            word, at = word + following, at + 1
        elif not quote and letter in " \t":
            break
        elif not quote and letter in "'\"":
            quote = letter
        elif letter == quote:
            quote = ""
        else:
            word += letter
        at += 1
    if quote:
        raise ValueError("a quote is not closed")
    return word, at


def first(options: Mapping[str, Sequence[str]], key: str, default: str) -> str:
    """The value of an option that counts."""
    values = options.get(key)
    return values[0] if values else default


def expand(text: str, options: Mapping[str, list[str]], name: str) -> str:
    """``%h %p %r %u %n %k %d %l %L %i %%`` and nothing else: what a command line gets, the rest is for its shell."""
    user = getpass.getuser()
    values: dict[str, Callable[[], str]] = {
        "%": lambda: "%",
        "h": lambda: first(options, "hostname", name),
        "p": lambda: first(options, "port", "22"),
        "r": lambda: first(options, "user", user),
        "u": lambda: user,
        "n": lambda: name,
        "k": lambda: first(options, "hostkeyalias", name),
        "d": lambda: str(Path.home()),
        "l": socket.gethostname,
        "L": lambda: socket.gethostname().partition(".")[0],
        "i": lambda: str(os.getuid()),
    }
    return _TOKEN.sub(lambda found: values.get(found.group(1), found.group)(), text)


def expand_path(text: str, options: Mapping[str, list[str]], name: str) -> str:
    """A file's name: a leading ``~``, ``${VAR}`` and the tokens.

    Raises:
        UsageError: a variable is not set, or there is no such user.
    """
    try:
        home = str(Path(text).expanduser()) if text.startswith("~") else text
    except RuntimeError:
        raise UsageError(f"{name}: ssh_config names {text}, and there is no such user") from None
    return _VARIABLE.sub(lambda found: variable(found.group(1), name), expand(home, options, name))


def variable(variable: str, name: str) -> str:
    """An environment variable that the configuration of host ``name`` asks for.

    Raises:
        UsageError: it is not set.
    """
    if variable not in os.environ:
        raise UsageError(f"{name}: ssh_config uses ${variable}, which is not set", hint=f"export {variable}")
    return os.environ[variable]
