"""The leaf values of the inventory file: strict, frozen, and with messages that never repeat what was written.

An offending value is never part of a message here: any of them may be a secret that slipped into the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_RULE = "letters, digits, '.', '_' and '-', starting with a letter or digit, 63 at most"
ENV_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
MAX_COUNT = 1024  # processes of one node; more is a typing mistake

_NAME = re.compile(NAME_PATTERN)
_ENV_NAME = re.compile(ENV_NAME_PATTERN)
# Set by the launcher in every process: a value from the file would be silently overwritten, or worse, believed.
LAUNCHER_OWNED = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)


class Strict(BaseModel):
    """Base of every model here: nothing is converted, nothing unknown is accepted, nothing changes afterwards."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True)
class Fault:
    """What is wrong at ``path`` (keys and list indices from the file's root), and how to fix it."""

    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    at_key: bool = False  # the key itself is at fault, not its value


class Number(float):
    """A decimal number that remembers how it was written, so that an argument ``1e-3`` reaches the script as that."""

    text: str

    def __new__(cls, text: str) -> Number:
        self = super().__new__(cls, text)
        self.text = text
        return self


def is_name(text: str) -> bool:
    """Whether ``text`` may name a host, a job or a cluster."""
    return _NAME.fullmatch(text) is not None


def is_env_name(text: str) -> bool:
    """Whether ``text`` may name an environment variable."""
    return _ENV_NAME.fullmatch(text) is not None


def bad(message: str, hint: str | None = None) -> PydanticCustomError:
    """An error for a validator to raise; the hint travels in the context."""
    return PydanticCustomError("fault", "{message}", {"message": message, "hint": hint})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise bad("must be text", "quote it")
    return _clean(value)


def _clean(value: str) -> str:
    if "\0" in value:
        raise bad("holds a NUL character, which no process can be given")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad("holds half a surrogate pair, which is not text") from None
    return value


def _filled(value: Any) -> str:
    text = _text(value)
    if not text.strip():
        raise bad("is empty")
    return text


def _literal_text(value: Any) -> str:
    """Text, or a plain number as the text it was written as."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value)


def _name(value: Any) -> str:
    text = _text(value)
    if not is_name(text):
        raise bad(f"is not a valid name: {NAME_RULE}")
    return text


def _word(value: Any) -> str:
    """A word that ends up on a command line or in a configuration: no blanks, no control characters, no option."""
    text = _filled(value)
    if text.startswith("-"):
        raise bad("must not start with '-'")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise bad("must not hold blanks or control characters")
    return text


# What no shell may see: ssh_config puts these values into ProxyCommand and Match exec for %h and %r. As in OpenSSH.
_NO_HOST = frozenset("'`\"$\\;&<>|(){}")
_NO_LOGIN = frozenset("'`\";&<>|(){}")
_WITH_PORT = re.compile(r"[^:\[\]]+:\d+|\[[^\]]*\]:\d+")


def _address(value: Any) -> str:
    """A host name or an IP address, and nothing else."""
    text = _word(value)
    if "@" in text:
        raise bad("must be a name or an IP address alone", "the login name goes to user:")
    if _WITH_PORT.fullmatch(text):
        raise bad("must be a name or an IP address alone", "the port goes to port:")
    return _without(text, _NO_HOST)


def _login(value: Any) -> str:
    """A login name."""
    text = _without(_word(value), _NO_LOGIN)
    if text.endswith("\\"):
        raise bad("must not end with a backslash")
    return text


def _jump(value: Any) -> str:
    """What ProxyJump takes: ``[user@]host[:port]``, several with commas."""
    text = _word(value)
    for user, _, host in (hop.rpartition("@") for hop in text.removeprefix("ssh://").split(",")):
        _without(_word(host), _NO_HOST)
        _login(user or host)
    return text


def _without(text: str, letters: frozenset[str]) -> str:
    if found := sorted(letters.intersection(text)):
        raise bad(f"must not hold {' '.join(found)}")
    return text


def _path(value: Any) -> str:
    text = _filled(value)
    if text.startswith("-"):
        raise bad("must not start with '-'", "write ./ before it")
    return text


def _env_name(value: Any) -> str:
    text = _text(value)
    if not is_env_name(text):
        raise bad("is not a name for an environment variable", "letters, digits and '_', not starting with a digit")
    if text in LAUNCHER_OWNED or text.startswith(("DDPCTL_", "PET_")):
        raise bad("is set by the launcher in every process and cannot be chosen here", "remove it")
    return text


def whole(minimum: int, maximum: int) -> Callable[[Any], int]:
    """A validator for whole numbers in a range, both ends included."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise bad(f"must be a whole number from {minimum} to {maximum}")
        return value

    return check


def auto_or(minimum: int, maximum: int) -> Callable[[Any], Any]:
    """A validator for ``auto`` or a whole number in a range."""

    def check(value: Any) -> Any:
        if value == "auto":
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise bad(f"must be auto or a whole number from {minimum} to {maximum}")
        return value

    return check


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10_000_000:
        raise bad("must be a number of seconds, 0 or more")
    return float(value)


def _positive_seconds(value: Any) -> float:
    if _seconds(value) == 0:
        raise bad("must be more than 0 seconds")
    return float(value)


def whole_schema(minimum: int, maximum: int) -> dict[str, Any]:
    """The JSON Schema of :func:`whole`."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def auto_schema(minimum: int, maximum: int) -> dict[str, Any]:
    """The JSON Schema of :func:`auto_or`."""
    return {"anyOf": [{"const": "auto"}, whole_schema(minimum, maximum)]}


def as_tuple(value: Any) -> Any:
    """A list as a tuple; anything else that is not a list is refused with words a YAML writer knows."""
    if not isinstance(value, (list, tuple)):
        raise bad("must be a list", "write [one, two], or one item per line after '- '")
    return tuple(value)


def as_mapping(value: Any) -> Any:
    """A mapping with text keys."""
    if not isinstance(value, Mapping):
        raise bad("must be a mapping of names to values", "write {NAME: value}, or one name a line")
    return value


@dataclass(frozen=True)
class KeyPattern:
    """Tells the JSON Schema of a mapping what its keys look like."""

    pattern: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "propertyNames": {"pattern": f"^{self.pattern}$"}}


_TEXT_SCHEMA = {"type": "string"}
_LITERAL_SCHEMA = {"type": ["string", "number"]}
_NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}

Text = Annotated[str, BeforeValidator(_text), WithJsonSchema(_TEXT_SCHEMA)]
Filled = Annotated[str, BeforeValidator(_filled), WithJsonSchema({"type": "string", "minLength": 1})]
LiteralText = Annotated[str, BeforeValidator(_literal_text), WithJsonSchema(_LITERAL_SCHEMA)]
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema(_NAME_SCHEMA)]
Word = Annotated[str, BeforeValidator(_word), WithJsonSchema({"type": "string", "pattern": r"^[^\s-]\S*$"})]
Address = Annotated[str, BeforeValidator(_address), WithJsonSchema({"type": "string", "pattern": r"^[^\s@-][^\s@]*$"})]
Login = Annotated[str, BeforeValidator(_login), WithJsonSchema({"type": "string", "pattern": r"^[^\s-]\S*$"})]
Jump = Annotated[str, BeforeValidator(_jump), WithJsonSchema({"type": "string", "pattern": r"^[^\s-]\S*$"})]
PathText = Annotated[str, BeforeValidator(_path), WithJsonSchema({"type": "string", "pattern": r"^[^-]"})]
EnvName = Annotated[str, BeforeValidator(_env_name), WithJsonSchema({"pattern": f"^{ENV_NAME_PATTERN}$"})]
Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": "number", "minimum": 0})]
PositiveSeconds = Annotated[
    float, BeforeValidator(_positive_seconds), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Port = Annotated[int, BeforeValidator(whole(1, 65535)), WithJsonSchema(whole_schema(1, 65535))]
AutoCount = Annotated[
    int | str, BeforeValidator(auto_or(1, MAX_COUNT)), WithJsonSchema(auto_schema(1, MAX_COUNT), mode="validation")
]
AutoPort = Annotated[int | str, BeforeValidator(auto_or(1, 65535)), WithJsonSchema(auto_schema(1, 65535))]

Words = Annotated[tuple[Word, ...], BeforeValidator(as_tuple)]
Paths = Annotated[tuple[PathText, ...], BeforeValidator(as_tuple)]
LiteralTexts = Annotated[tuple[LiteralText, ...], BeforeValidator(as_tuple)]
Env = Annotated[
    Mapping[EnvName, LiteralText],
    KeyPattern(ENV_NAME_PATTERN),
    BeforeValidator(as_mapping),
    AfterValidator(dict),
    Field(repr=False),
]
Labels = Annotated[
    Mapping[Name, LiteralText], KeyPattern(NAME_PATTERN), BeforeValidator(as_mapping), AfterValidator(dict)
]


def one_of(*words: str) -> BeforeValidator:
    """A validator for one of a few words; the nearest one is offered by the reader of the file."""

    def check(value: Any) -> str:
        if value not in words:
            raise PydanticCustomError("choice", "must be one of: {words}", {"words": ", ".join(words)})
        return str(value)

    return BeforeValidator(check)


def plural(count: int, word: str) -> str:
    """``1 host``, ``2 hosts``, ``2 processes``."""
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count} {word}{ending}"
