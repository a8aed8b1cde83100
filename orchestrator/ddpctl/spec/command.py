"""A command as a value, and its outcome on a host. Shell text is made of a command only for a person to read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddpctl.spec.values import is_env_name

REDACTED = "********"
# The last word of an option or key: --api-key, hub.token, WANDB_API_KEY. Not --num_keys or --tokenizer.
_SECRET_NAME = re.compile(r"(?:^|[-_.]|api)(?:key|token|secret|passw(?:or)?d|passphrase|credentials?)$", re.IGNORECASE)
_SHORTEST_KEY = 8  # letters: `--key step` and `--pad_token <pad>` hold no secret; a password may have any length
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+@")

# A command of ddpctl in a text, up to its name. `ddpctl init` and `ddpctl schema` read no inventory.
_READS_INVENTORY = re.compile(
    r"\bddpctl (?=(?:attach|bench|checkpoints?|doctor|exec|fetch|gc|kill|metrics|preflight|ps|push|report|restart|rm|"
    r"ssh|status|tail|top|trust|up)\b(?! --help))"
)


@dataclass(frozen=True)
class Command:
    """A command: ``argv`` (never a shell line), extra ``env``, and ``cwd``. It holds no secret."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs at least a program")
        for text in (*self.argv, *self.env.values(), self.cwd or ""):
            if "\0" in text:
                raise ValueError("a NUL byte cannot be passed to a process")
        for name in self.env:
            if not is_env_name(name):
                raise ValueError(f"not a name for an environment variable: {name!r}")


def display(argv: tuple[str, ...] | list[str]) -> str:
    """Return the command line as a person would type it."""
    return shlex.join(argv)


def find_commands(text: str) -> list[int]:
    """Return where ``-i FILE`` belongs in a text: after ``ddpctl`` in each of its commands that read an inventory."""
    return [found.end() for found in _READS_INVENTORY.finditer(text)]


def name_inventory(text: str, option: str) -> str:
    """Return the text with ``option``, which is ``-i FILE`` and a space, in its commands that read an inventory."""
    return _READS_INVENTORY.sub(lambda found: f"{found[0]}{option}", text) if option else text


def hide_secrets(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``REDACTED`` in the place of values whose option or key names a secret.

    The forms are ``--token VALUE``, ``--token=VALUE``, ``hub.token=VALUE`` and a password in an address.
    """
    shown: list[str] = []
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        before = argv[number - 1] if number else ""
        if equals and _is_secret(name, value):
            word = f"{name}={REDACTED}"
        elif before.startswith("-") and "=" not in before and not word.startswith("-") and _is_secret(before, word):
            word = REDACTED
        shown.append(_PASSWORD_IN_ADDRESS.sub(rf"\1:{REDACTED}@", word))
    return shown


def _is_secret(name: str, value: str) -> bool:
    found = _SECRET_NAME.search(name)
    return bool(found and value and ("pass" in found[0].lower() or len(value) >= _SHORTEST_KEY))


@dataclass(frozen=True)
class Ran:
    """The outcome of a plain command on a host: exit code (128 + s for a signal s) and the last 1 MiB of each stream.

    ``exit_code`` is ``None`` if the command did not run, or did not end by itself; ``error`` says why.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def trouble(self) -> str:
        """Return why the command is not ok."""
        return self.error or f"exit code {self.exit_code}"

    def to_json(self, host: str) -> dict[str, Any]:
        return {"host": host, **asdict(self)}
