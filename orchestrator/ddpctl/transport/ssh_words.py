"""The syntax of ssh_config: words of a line, patterns, and the expansion of ``%h``, ``${VAR}`` and ``~``."""

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
    """The patterns of a Host line, of a criterion of a Match line, or of a line of known_hosts.

    Case counts, as in OpenSSH's configuration; a caller that ignores case passes both sides in lower case.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._literal: set[str] = set()
        self._positive: list[re.Pattern[str]] = []
        self._negative: list[re.Pattern[str]] = []
        for word in words:
            if word.startswith("!"):
                self._negative.append(compile_pattern(word[1:]))
            elif _WILD.search(word):
                self._positive.append(compile_pattern(word))
            else:
                self._literal.add(word)

    def match(self, names: Sequence[str]) -> bool:
        """Return whether a name matches and no name is excluded."""
        if any(pattern.fullmatch(name) for pattern in self._negative for name in names):
            return False
        if not self._literal.isdisjoint(names):
            return True
        return any(pattern.fullmatch(name) for pattern in self._positive for name in names)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern with ``*`` and ``?``, as everywhere in OpenSSH."""
    text = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.compile(text, re.DOTALL)


def keyword(line: str) -> tuple[str, str] | None:
    """Return a line's keyword in lower case and the rest of the line; None: this is no line of an ssh_config."""
    found = _LINE.fullmatch(line.rstrip(" \t\r\n\f"))
    return (found.group(1).lower(), found.group(2)) if found and found.group(2) else None


def words(rest: str) -> list[str]:
    """Return a line's arguments. Either quote keeps blanks, a backslash keeps a quote, ``#`` begins a comment.

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
    """Return the word that begins at ``at``, and the position of its end."""
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


def first_value(options: Mapping[str, Sequence[str]], key: str, default: str) -> str:
    """Return the value of an option that counts, which is the first."""
    values = options.get(key)
    return values[0] if values else default


def expand(text: str, options: Mapping[str, list[str]], name: str) -> str:
    """Expand ``%h %p %r %u %n %k %d %l %L %i %%`` and no other token: the shell of a command expands the rest."""
    user = getpass.getuser()
    values: dict[str, Callable[[], str]] = {
        "%": lambda: "%",
        "h": lambda: first_value(options, "hostname", name),
        "p": lambda: first_value(options, "port", "22"),
        "r": lambda: first_value(options, "user", user),
        "u": lambda: user,
        "n": lambda: name,
        "k": lambda: first_value(options, "hostkeyalias", name),
        "d": lambda: str(Path.home()),
        "l": socket.gethostname,
        "L": lambda: socket.gethostname().partition(".")[0],
        "i": lambda: str(os.getuid()),
    }
    return _TOKEN.sub(lambda found: values.get(found.group(1), found.group)(), text)


def expand_path(text: str, options: Mapping[str, list[str]], name: str) -> str:
    """Expand a leading ``~``, ``${VAR}`` and the tokens in a file's name.

    Raises:
        UsageError: a variable is not set, or there is no such user.
    """
    try:
        home = str(Path(text).expanduser()) if text.startswith("~") else text
    except RuntimeError:
        raise UsageError(f"{name}: ssh_config names {text}, and there is no such user") from None
    return _VARIABLE.sub(lambda found: variable(found.group(1), name), expand(home, options, name))


def variable(variable: str, name: str) -> str:
    """Return an environment variable that the configuration of host ``name`` uses.

    Raises:
        UsageError: the variable is not set.
    """
    if variable not in os.environ:
        raise UsageError(f"{name}: ssh_config uses ${variable}, which is not set", hint=f"export {variable}")
    return os.environ[variable]
