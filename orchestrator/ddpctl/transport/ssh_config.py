"""OpenSSH's client configuration: parsed once, looked up for every host.

paramiko's reader has no Include, compiles every pattern again for every host (minutes for hundreds of both), and asks
the name server for each host's IdentityFile. This reader follows ssh_config(5) and is compared with ``ssh -G``. The
first value wins. IdentityFile and CertificateFile add up. Include is read in place. A ``Match final`` anywhere causes a
second pass, in which Host lines see the HostName.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ddpctl.errors import UsageError
from ddpctl.transport.limits import INCLUDE_DEPTH, MATCH_EXEC_S
from ddpctl.transport.ssh_words import Patterns, expand, first_value, keyword, words

SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_MANY = frozenset({"identityfile", "certificatefile"})  # every value counts, not only the first
WHOLE_LINE = frozenset({"userknownhostsfile", "globalknownhostsfile"})  # several files, separated by line ends
_COMMANDS = frozenset({"proxycommand", "proxyjump", "knownhostscommand", "localcommand", "remotecommand"})
_PATTERN = re.compile(r"[*?!]")

Options = dict[str, list[str]]
ReadInclude = Callable[[str], Iterable[tuple[str, str]]]


@dataclass
class Lookup:
    """A lookup in progress."""

    names: tuple[str, ...]  # the names that the user gives the host
    local_user: str
    options: Options
    final: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The current name of the host: its HostName, once it is set."""
        if "hostname" not in self.options:
            return self.names
        return (expand_hostname(self.options, self.names[0]),)

    @property
    def tokens(self) -> Options:
        return {**self.options, "hostname": [self.hosts[0]]}


def expand_hostname(options: Mapping[str, list[str]], name: str) -> str:
    """Return the HostName of a host. It knows ``%h`` alone, which is the name that was asked for."""
    return expand(options["hostname"][0], {}, name) if "hostname" in options else name


Condition = Callable[[Lookup], bool]


@dataclass(frozen=True)
class Block:
    """A Host or Match line and the lines below it: options, and the blocks of files that are included there."""

    condition: Condition
    items: list[tuple[str, str] | list[Block]] = field(default_factory=list)


class SSHConfig:
    """A parsed configuration. With several files, the user's comes first."""

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        *,
        final: bool = False,
        unknown: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> None:
        self._blocks = tuple(blocks)
        self._final = final
        self.names = tuple(dict.fromkeys(names))  # names without wildcards of the Host lines
        self.unknown = tuple(unknown)  # unknown criteria of Match, which are never true: see asked_config

    def __add__(self, other: SSHConfig) -> SSHConfig:
        return SSHConfig(
            self._blocks + other._blocks,
            final=self._final or other._final,
            unknown=(*self.unknown, *other.unknown),
            names=(*self.names, *other.names),
        )

    def lookup(self, *names: str, given: Mapping[str, str] | None = None) -> Options:
        """Return every option for a host with the given names (its name in the inventory and its address).

        ``given`` are the inventory's values, which count first, like options on a command line.
        """
        asked = Lookup(names, getpass.getuser(), {key: [value] for key, value in (given or {}).items()})
        _apply(self._blocks, asked)
        if self._final:
            asked.options["hostname"], asked.final = [asked.hosts[0].lower().replace("%", "%%")], True
            _apply(self._blocks, asked)
        return asked.options


def _apply(blocks: Iterable[Block], asked: Lookup) -> None:
    for block in blocks:
        if not block.condition(asked):
            continue
        for item in block.items:
            if isinstance(item, list):
                _apply(item, asked)
            else:
                _take(asked.options, *item)


def _take(options: Options, key: str, value: str) -> None:
    """Store an option: the first value counts.

    ProxyJump and ProxyCommand exclude each other; the first that is not ``none`` counts.
    """
    if key == "proxyjump":
        value = value.partition("#")[0].strip()
        if value.lower() != "none" and "proxycommand" in options:
            return
    if key == "proxycommand" and first_value(options, "proxyjump", "none").lower() != "none":
        return
    if key in _MANY:
        values = options.setdefault(key, [])
        if value not in values:
            values.append(value)
    else:
        options.setdefault(key, [value])


def load(path: str, *, system: str | None = None) -> SSHConfig:
    """Return the configuration in a file, followed by the system's if ``system`` names it. A missing file is empty.

    Raises:
        UsageError: a file cannot be read, or Includes form a circle.
    """
    config = _load(Path(path).expanduser(), path)
    return config + _load(Path(system), system) if system else config


def _load(file: Path, source: str) -> SSHConfig:
    try:
        text = file.read_text("utf-8", "replace")
    except FileNotFoundError:
        return SSHConfig()
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}", hint="name a readable file with `ssh_config:`") from None
    return parse(text, source, _included_files(file.parent))


def _included_files(folder: Path) -> ReadInclude:
    def read(pattern: str) -> Iterable[tuple[str, str]]:
        full = str(folder / Path(pattern).expanduser())  # a relative path is beside the file, as in ~/.ssh
        for file in sorted(Path(name) for name in glob.glob(full)):  # noqa: PTH207
            with suppress(OSError):  # a folder or an unreadable file: OpenSSH continues as well
                yield str(file), file.read_text("utf-8", "replace")

    return read


def parse(text: str, source: str, read: ReadInclude) -> SSHConfig:
    """Return the configuration in ``text``. ``read`` yields (name, text) of the files that an Include pattern names.

    Raises:
        UsageError: a line does not belong to an ssh_config.
    """
    parser = _Parser(read)
    blocks = parser.blocks(text, source, 0)
    unknown = tuple(dict.fromkeys(parser.unknown))
    return SSHConfig(blocks, final=parser.final, unknown=unknown, names=parser.names)


class _Parser:
    def __init__(self, read: ReadInclude) -> None:
        self._read = read
        self.final = False
        self.unknown: list[str] = []
        self.names: list[str] = []

    def blocks(self, text: str, source: str, depth: int) -> list[Block]:
        if depth > INCLUDE_DEPTH:
            raise UsageError(
                f"{source}: Include goes deeper than {INCLUDE_DEPTH} files",
                hint="look for files that include each other",
            )
        found = [Block(lambda _asked: True)]
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self._line(found, line, f"{source}:{number}", depth)
        return found

    def _line(self, found: list[Block], line: str, where: str, depth: int) -> None:
        pair = keyword(line)
        if pair is None:
            raise UsageError(f"{where}: not a line of an ssh_config: {line.strip()[:60]}")
        key, rest = pair
        if key in _COMMANDS:
            found[-1].items.append((key, rest))  # the rest of the line, unchanged
            return
        try:
            arguments = words(rest)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if key == "host":
            found.append(Block(_host(arguments)))
            self.names += [word for word in arguments if not _PATTERN.search(word)]
        elif key == "match":
            found.append(Block(self._match(arguments, where)))
        elif key == "include":
            for pattern in arguments:
                for name, content in self._read(pattern):
                    found[-1].items.append(self.blocks(content, name, depth + 1))
        elif arguments:
            found[-1].items.append((key, "\n".join(arguments) if key in WHOLE_LINE else arguments[0]))

    def _match(self, arguments: list[str], where: str) -> Condition:
        """Return a Match line as one condition: all of its criteria must hold."""
        tests: list[Condition] = []
        left = list(arguments)
        while left:
            word = left.pop(0)
            negated, name = word.startswith("!"), word.lstrip("!")
            name, _, glued = name.partition("=")
            name = name.lower()
            if name in _FLAGS:
                self.final = self.final or name == "final"
                tests.append(_negate(negated, _FLAGS[name]))
                continue
            if not glued and not left:
                raise UsageError(f"{where}: Match {name} needs a value")
            value = glued or left.pop(0)
            if name not in _CRITERIA:
                self.unknown.append(f"Match {name}")
                tests.append(lambda _asked: False)
                continue
            tests.append(_negate(negated, _CRITERIA[name](value)))
        return lambda asked: all(test(asked) for test in tests)


def _host(patterns: list[str]) -> Condition:
    wanted = Patterns(patterns)
    return lambda asked: wanted.match(asked.hosts if asked.final else asked.names)


def in_shell(line: str) -> list[str]:
    """Return the argv that runs the user's own line in the user's shell, as ssh(1) does."""
    return [os.environ.get("SHELL") or "/bin/sh", "-c", line]


@cache
def _exec(command: str) -> bool:
    """Return whether a command of ``Match exec`` succeeds; each command runs once.

    Raises:
        UsageError: the command does not end, or cannot start.
    """
    try:
        done = subprocess.run(
            in_shell(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MATCH_EXEC_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"Match exec `{command}` of ssh_config does not end within {MATCH_EXEC_S:g} s",
            hint="run it by hand to see why",
        ) from None
    except OSError as error:
        raise UsageError(f"Match exec `{command}` of ssh_config cannot be run: {error.strerror}") from None
    return done.returncode == 0


_FLAGS: Mapping[str, Condition] = {
    "all": lambda _asked: True,
    # ddpctl never canonicalizes names; in the final pass OpenSSH treats both words alike.
    "canonical": lambda asked: asked.final,
    "final": lambda asked: asked.final,
}


def _negate(negated: bool, test: Condition) -> Condition:
    return (lambda asked: not test(asked)) if negated else test


def _of(names: Callable[[Lookup], Sequence[str]]) -> Callable[[str], Condition]:
    def criterion(value: str) -> Condition:
        patterns = Patterns(value.split(","))
        return lambda asked: patterns.match(names(asked))

    return criterion


def _of_hosts(names: Callable[[Lookup], Sequence[str]]) -> Callable[[str], Condition]:
    """Return a criterion on host names that ignores case, as Match does and Host does not."""
    criterion = _of(lambda asked: [name.lower() for name in names(asked)])
    return lambda value: criterion(value.lower())


_CRITERIA: Mapping[str, Callable[[str], Condition]] = {
    "host": _of_hosts(lambda asked: asked.hosts),
    "originalhost": _of_hosts(lambda asked: asked.names),
    "user": _of(lambda asked: (first_value(asked.options, "user", asked.local_user),)),
    "localuser": _of(lambda asked: (asked.local_user,)),
    "exec": lambda value: lambda asked: _exec(expand(value, asked.tokens, asked.names[0])),
}
