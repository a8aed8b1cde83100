"""OpenSSH's client configuration: parsed once, asked for every host.

paramiko's own reader knows no Include, compiles every pattern anew for every host (minutes for hundreds of both) and
asks the name server for each host's IdentityFile. This one follows ssh_config(5): the first value wins, IdentityFile
adds up, Include is read in place, Match knows host, originalhost, user, localuser, exec, final and all.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpctl.errors import UsageError

_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*)")
_WILD = re.compile(r"[*?!]")
_MANY = frozenset({"identityfile", "certificatefile"})  # every value counts, not the first alone
_MAX_DEPTH = 16

Options = dict[str, list[str]]
ReadInclude = Callable[[str], Iterable[tuple[str, str]]]


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
                self._negative.append(_compile(word[1:]))
            elif _WILD.search(word):
                self._positive.append(_compile(word))
            else:
                self._literal.add(word)

    def match(self, names: Sequence[str]) -> bool:
        """True when a name fits and none is excluded."""
        if any(pattern.fullmatch(name) for pattern in self._negative for name in names):
            return False
        if not self._literal.isdisjoint(names):
            return True
        return any(pattern.fullmatch(name) for pattern in self._positive for name in names)


def _compile(pattern: str) -> re.Pattern[str]:
    text = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.compile(text, re.DOTALL)


@dataclass
class Asked:
    """One lookup on its way."""

    names: tuple[str, ...]  # what the host is called by the user
    local_user: str
    final: bool = False
    options: Options = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the host is called now: by HostName, once there is one."""
        if "hostname" not in self.options:
            return self.names
        return (expand(self.options["hostname"][0], {}, self.names[0]),)

    def first(self, key: str, default: str) -> str:
        values = self.options.get(key)
        return values[0] if values else default


Condition = Callable[[Asked], bool]


@dataclass(frozen=True)
class Block:
    """Options behind a Host or Match line, and behind those that enclose it through Include."""

    conditions: tuple[Condition, ...]
    options: list[tuple[str, str]] = field(default_factory=list)


class SSHConfig:
    """A parsed configuration."""

    def __init__(self, blocks: Sequence[Block] = (), source: str = "ssh_config") -> None:
        self._blocks = tuple(blocks)
        self.source = source

    def lookup(self, *names: str) -> Options:
        """Every option for a host that is called by ``names`` (its name in the inventory and its address)."""
        asked = Asked(names, getpass.getuser())
        for asked.final in (False, True):
            for block in self._blocks:
                if all(condition(asked) for condition in block.conditions):
                    for key, value in block.options:
                        _take(asked.options, key, value)
        return asked.options


def _take(options: Options, key: str, value: str) -> None:
    if key in _MANY:
        values = options.setdefault(key, [])
        if value not in values:
            values.append(value)
    else:
        options.setdefault(key, [value])


def load(path: str) -> SSHConfig:
    """The configuration in a file; empty where there is no such file.

    Raises:
        UsageError: it cannot be read, or Includes go round in circles.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text("utf-8", "replace")
    except FileNotFoundError:
        return SSHConfig((), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a readable file with `ssh_config:`") from None
    return SSHConfig(parse(text, path, _included_files(file.parent)), path)


def _included_files(folder: Path) -> ReadInclude:
    def read(pattern: str) -> Iterable[tuple[str, str]]:
        full = str(folder / Path(pattern).expanduser())  # a relative one is beside the file, as in ~/.ssh
        for file in sorted(Path(name) for name in glob.glob(full)):  # noqa: PTH207
            if file.is_file():
                yield str(file), file.read_text("utf-8", "replace")

    return read


def parse(text: str, source: str, read: ReadInclude) -> list[Block]:
    """The blocks of a configuration in order; ``read`` gives (name, text) of the files an Include pattern names."""
    blocks: list[Block] = []
    _parse_into(blocks, text, source, read, (), 0)
    return blocks


def _parse_into(
    blocks: list[Block], text: str, source: str, read: ReadInclude, outer: tuple[Condition, ...], depth: int
) -> None:
    if depth > _MAX_DEPTH:
        raise UsageError(f"{source}: Include goes deeper than {_MAX_DEPTH} files", hint="look for a circle")
    block = Block(outer)
    blocks.append(block)
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line.rstrip())
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if not found:
            raise UsageError(f"{source}:{number}: not a line of an ssh_config: {line.strip()[:60]}")
        key, rest = found.group(1).lower(), found.group(2)
        if key == "host":
            block = Block((*outer, _host(words(rest))))
            blocks.append(block)
        elif key == "match":
            block = Block((*outer, _match(words(rest), f"{source}:{number}")))
            blocks.append(block)
        elif key == "include":
            for pattern in words(rest):
                for name, content in read(pattern):
                    _parse_into(blocks, content, name, read, block.conditions, depth + 1)
            block = Block(block.conditions)  # what follows comes after what was included
            blocks.append(block)
        elif key in ("proxycommand", "localcommand", "remotecommand", "knownhostscommand"):
            block.options.append((key, rest))  # the rest of the line as it is
        else:
            block.options.append((key, " ".join(words(rest)) if key != "userknownhostsfile" else rest))


def words(rest: str) -> list[str]:
    """A line's arguments: double quotes keep blanks, ``#`` begins a comment."""
    found = re.findall(r'"([^"]*)"|(#.*)|([^\s"]+)', rest)
    kept: list[str] = []
    for quoted, comment, plain in found:
        if comment:
            break
        kept.append(quoted or plain)
    return kept


def _host(patterns: list[str]) -> Condition:
    compiled = Patterns(patterns)
    return lambda asked: compiled.match(asked.names)


def _match(arguments: list[str], where: str) -> Condition:
    """A Match line as one condition: all of its criteria."""
    tests: list[Condition] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        negated, name = word.startswith("!"), word.lstrip("!").lower()
        name, _, glued = name.partition("=")
        if name in ("all", "canonical", "final"):
            tests.append(_negate(negated, _FLAGS[name]))
            continue
        if not glued and not left:
            raise UsageError(f"{where}: Match {name} needs a value")
        tests.append(_negate(negated, _criterion(name, glued or left.pop(0))))
    return lambda asked: all(test(asked) for test in tests)


_FLAGS: Mapping[str, Condition] = {
    "all": lambda _asked: True,
    "canonical": lambda _asked: False,  # names are never canonicalized here
    "final": lambda asked: asked.final,
}


def _negate(negated: bool, test: Condition) -> Condition:
    return (lambda asked: not test(asked)) if negated else test


def _criterion(name: str, value: str) -> Condition:
    if name == "exec":
        return lambda asked: _exec(expand(value, asked.options, asked.names[0]))
    patterns = Patterns(value.split(","))
    if name == "host":
        return lambda asked: patterns.match(asked.hosts)
    if name == "originalhost":
        return lambda asked: patterns.match(asked.names)
    if name == "user":
        return lambda asked: patterns.match((asked.first("user", asked.local_user),))
    if name == "localuser":
        return lambda asked: patterns.match((asked.local_user,))
    return lambda _asked: False  # tagged, localnetwork, ...: never ours


def _exec(command: str) -> bool:
    """The user's own command from the user's own file, as ssh(1) runs it."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def expand(text: str, options: Mapping[str, list[str]], name: str) -> str:
    """``%h %p %r %u %n %d %l %i %%``, ``${VAR}`` and a leading ``~``."""
    user = getpass.getuser()
    values: dict[str, Callable[[], str]] = {
        "%": lambda: "%",
        "h": lambda: options.get("hostname", [name])[0],
        "p": lambda: options.get("port", ["22"])[0],
        "r": lambda: options.get("user", [user])[0],
        "u": lambda: user,
        "n": lambda: name,
        "k": lambda: options.get("hostkeyalias", [name])[0],
        "d": lambda: str(Path.home()),
        "l": socket.gethostname,
        "L": lambda: socket.gethostname().partition(".")[0],
        "i": lambda: str(os.getuid()),
    }
    text = re.sub(r"%(.)", lambda found: values.get(found.group(1), found.group)(), text)
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found.group(1), ""), text)
    return str(Path(text).expanduser()) if text.startswith("~") else text


def split_paths(value: str) -> list[str]:
    """Several paths on one line (UserKnownHostsFile)."""
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()
