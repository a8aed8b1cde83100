"""The leaf values of the inventory file: strict and frozen.

No message repeats an invalid value: it may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from ddpctl.spec.limits import MAX_COUNT

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_RULE = "letters, digits, '.', '_' and '-', starting with a letter or digit, 63 at most"
ENV_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"

_NAME = re.compile(NAME_PATTERN)
_ENV_NAME = re.compile(ENV_NAME_PATTERN)
# The launcher sets these variables in every process. A value from the file would be overwritten or, worse, used.
LAUNCHER_OWNED = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)


class Strict(BaseModel):
    """The base of every model: no conversion of values, no unknown keys, no changes after creation."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True)
class Fault:
    """A fault at ``path`` (keys and list indices from the root of the file), with a hint how to fix it."""

    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    at_key: bool = False  # the key itself is at fault, not its value


class Number(float):
    """A decimal number that keeps its text, so that an argument ``1e-3`` reaches the script unchanged."""

    text: str

    def __new__(cls, text: str) -> Number:
        self = super().__new__(cls, text)
        self.text = text
        return self


def is_name(text: str) -> bool:
    """Return whether ``text`` may name a host, a job or a cluster."""
    return _NAME.fullmatch(text) is not None


def is_env_name(text: str) -> bool:
    """Return whether ``text`` may name an environment variable."""
    return _ENV_NAME.fullmatch(text) is not None


def whole_number(text: str, least: int, most: int) -> int | None:
    """Return the whole number in ``text``; None: any other text, or a number beyond these bounds."""
    if not (text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(most))):
        return None
    number = int(text.lstrip("0") or "0")
    return number if least <= number <= most else None


def make_fault(message: str, hint: str | None = None) -> PydanticCustomError:
    """Return an error for a validator to raise; its context holds the hint."""
    return PydanticCustomError("fault", "{message}", {"message": message, "hint": hint})


def with_message(message: str, hint: str | None = None) -> WrapValidator:
    """Replace all of pydantic's messages about a value by this message; an error of ``make_fault`` stays."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if error.errors()[0]["type"] == "fault":
                raise
            raise make_fault(message, hint) from None

    return WrapValidator(check)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise make_fault("must be text", "quote it")
    return _clean(value)


def _clean(value: str) -> str:
    if "\0" in value:
        raise make_fault("holds a NUL character, which cannot be passed to a process")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise make_fault("is not valid Unicode (half of a surrogate pair)") from None
    return value


def _filled(value: Any) -> str:
    text = _text(value)
    if not text.strip():
        raise make_fault("is empty")
    return text


def _literal_text(value: Any) -> str:
    """Accept text, and a plain number as the text in the file."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value)


def _word(value: Any) -> str:
    """Accept a word for a command line or a configuration: no blanks, no control characters, no option."""
    text = _filled(value)
    if text.startswith("-"):
        raise make_fault("must not start with '-'")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise make_fault("must not hold blanks or control characters")
    return text


# Characters with a meaning in a shell: ssh_config inserts these values for %h and %r into ProxyCommand and Match exec.
# The lists are OpenSSH's own.
_NO_HOST = frozenset("'`\"$\\;&<>|(){}")
_NO_LOGIN = frozenset("'`\";&<>|(){}")
_WITH_PORT = re.compile(r"[^:\[\]]+:\d+|\[[^\]]*\]:\d+")


def _address(value: Any) -> str:
    """Accept a host name or an IP address, without user and port."""
    text = _word(value)
    if "@" in text:
        raise make_fault("must be a name or an IP address alone", "the login name goes to user:")
    if _WITH_PORT.fullmatch(text):
        raise make_fault("must be a name or an IP address alone", "the port goes to port:")
    return _without(text, _NO_HOST)


def _login(value: Any) -> str:
    text = _without(_word(value), _NO_LOGIN)
    if text.endswith("\\"):
        raise make_fault("must not end with a backslash")
    return text


def _jump(value: Any) -> str:
    """Accept the syntax of ProxyJump: ``[user@]host[:port]``, several of them with commas."""
    text = _word(value)
    for user, _, host in (hop.rpartition("@") for hop in text.removeprefix("ssh://").split(",")):
        _without(_word(host), _NO_HOST)
        _login(user or host)
    return text


def _without(text: str, letters: frozenset[str]) -> str:
    if found := sorted(letters.intersection(text)):
        raise make_fault(f"must not hold {' '.join(found)}")
    return text


def _env_name(value: Any) -> str:
    text = _text(value)
    if not is_env_name(text):
        raise make_fault(
            "is not a name for an environment variable", "letters, digits and '_', not starting with a digit"
        )
    if text in LAUNCHER_OWNED or text.startswith(("DDPCTL_", "PET_")):
        raise make_fault("is set by the launcher in every process and cannot be chosen here", "remove it")
    return text


@dataclass(frozen=True)
class KeyPattern:
    """Adds the pattern of the keys to the JSON Schema of a mapping."""

    pattern: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "propertyNames": {"pattern": f"^{self.pattern}$"}}


Text = Annotated[str, BeforeValidator(_text)]
Filled = Annotated[str, Field(min_length=1), BeforeValidator(_filled)]
LiteralText = Annotated[str, BeforeValidator(_literal_text), WithJsonSchema({"type": ["string", "number"]})]
Name = Annotated[
    str, Field(pattern=f"^{NAME_PATTERN}$"), BeforeValidator(_text), with_message(f"is not a valid name: {NAME_RULE}")
]
Word = Annotated[str, Field(pattern=r"^[^\s-]\S*$"), BeforeValidator(_word)]
Address = Annotated[str, Field(pattern=r"^[^\s@-][^\s@]*$"), BeforeValidator(_address)]
Login = Annotated[str, Field(pattern=r"^[^\s-]\S*$"), BeforeValidator(_login)]
Jump = Annotated[str, Field(pattern=r"^[^\s-]\S*$"), BeforeValidator(_jump)]
PathText = Annotated[
    str,
    Field(pattern=r"^[^-]"),
    BeforeValidator(_filled),
    with_message("must not start with '-'", "write ./ before it"),
]
EnvName = Annotated[str, Field(pattern=f"^{ENV_NAME_PATTERN}$"), BeforeValidator(_env_name)]
Seconds = Annotated[float, Field(ge=0, le=10_000_000), with_message("must be a number of seconds, 0 or more")]
PositiveSeconds = Annotated[float, Field(gt=0, le=10_000_000), with_message("must be a number of seconds, more than 0")]
Port = Annotated[int, Field(ge=1, le=65535), with_message("must be a whole number from 1 to 65535")]
AutoPort = Annotated[Literal["auto"] | Port, with_message("must be auto or a whole number from 1 to 65535")]
AutoCount = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_COUNT)],
    with_message(f"must be auto or a whole number from 1 to {MAX_COUNT}"),
]

AsTuple = Field(strict=False)  # the file has lists: they become tuples, and no other conversion exists
Words = Annotated[tuple[Word, ...], AsTuple]
Paths = Annotated[tuple[PathText, ...], AsTuple]
LiteralTexts = Annotated[tuple[LiteralText, ...], AsTuple]
Env = Annotated[Mapping[EnvName, LiteralText], KeyPattern(ENV_NAME_PATTERN), AfterValidator(dict), Field(repr=False)]
Labels = Annotated[Mapping[Name, LiteralText], KeyPattern(NAME_PATTERN), AfterValidator(dict)]


def plural(count: int, word: str) -> str:
    """Return the count with the word in singular or plural: ``1 host``, ``2 hosts``, ``2 processes``."""
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count} {word}{ending}"
