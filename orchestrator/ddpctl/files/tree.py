"""A strict YAML reader: a document as a tree with the line and column of every value.

It reads ruamel.yaml's events. ruamel's composed nodes have positions too, but they hide syntax that is refused here:
aliases, directives, a second document. The composer also calls itself for each level of the file, without a bound.

A plain (unquoted) scalar is text, a plain number, ``true``, ``false`` or empty. A scalar that YAML readers read
differently is refused: ``no`` is False in YAML 1.1 and text in YAML 1.2, ``010`` is 8, 10 or text, ``22:22`` is 1342 or
text. The error asks the user to quote it. The only exception is ``off`` as the value of a job's ``doctor``, where both
readings mean the same.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from ddpctl.errors import InventoryError
from ddpctl.files.limits import YAML_BYTES, YAML_DEPTH
from ddpctl.spec.values import Number

_TAB_INDENT = re.compile(r"(?m)^ *\t")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufeff\ufffe\uffff]")

Scalar = str | int | bool | Number | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {"true": True, "false": False}  # all YAML readers agree on these
_INT = re.compile(r"-?[1-9][0-9]{0,17}|0")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BOOLEAN = re.compile(r"(?i:y|yes|n|no|on|off|true|false)")
_LOOKALIKES = (
    ("a boolean", _BOOLEAN),
    ("a number", re.compile(r"[-+]?0[0-7_]+|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[oO][0-7_]+|[-+]?0[bB][01_]+")),
    ("a number", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")),
    ("a number", re.compile(r"[-+]?\.[0-9_]+([eE][-+]?[0-9]+)?")),
    ("a number", re.compile(r"(?i:[-+]?\.(inf|nan))")),
    ("a number in base 60", re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt\s].*)?")),
    ("a null", re.compile(r"(?i:null)")),
    ("a default value", re.compile(r"=")),
    ("a merge key", re.compile(r"<<")),
)

Path = tuple[str | int, ...]
Place = tuple[int | None, int | None]  # line and column, from 1


@dataclass
class Node:
    """A value with its position (1-based). ``key_at`` has the positions of a mapping's keys."""

    file: str
    line: int | None
    column: int | None
    value: Scalar | list[Node] | dict[str, Node] = None
    key_at: dict[str, Place] = field(default_factory=dict)

    def child(self, part: str | int) -> Node | None:
        """Return the node below this key or index."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None

    def plain(self) -> Any:
        """Return the value as plain Python, without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class LookAlike(ValueError):
    """A plain scalar that YAML readers read differently. The message names the other reading, ``hint`` the remedy."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"reads as {kind} in some YAML readers and as text in others")
        number = "number" in kind
        self.hint = "quote it to make it text, or write a plain decimal number" if number else "quote it"


def plain_scalar(text: str, path: Path = ()) -> Scalar:
    """Return the value of an unquoted scalar at ``path``; a number keeps its spelling.

    Raises:
        LookAlike: YAML readers read it differently.
    """
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _INT.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Number(text)
    if text == "off" and _takes_off(path):
        return text
    for kind, pattern in _LOOKALIKES:
        if pattern.fullmatch(text):
            raise LookAlike(kind)
    return text


def _takes_off(path: Path) -> bool:
    """Return whether the text ``off`` and the boolean false mean the same at ``path``."""
    return len(path) == 3 and (path[0], path[2]) == ("jobs", "doctor")


def shown_path(path: Sequence[str | int]) -> str:
    """Return the path as ``jobs.resnet_ddp.args[2]``."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return words.removeprefix(".")


def decode(data: bytes, file: str, *, tabs: bool = False) -> str:
    """Return the text of a file; with ``tabs`` it may be indented with tabs.

    Raises:
        InventoryError: the file is too big, is not UTF-8, or holds control characters.
    """
    if len(data) > YAML_BYTES:
        raise InventoryError(f"is {len(data)} bytes long; {YAML_BYTES} is the limit", file=file)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")  # Windows' editors begin a file with that mark
    except UnicodeDecodeError as error:
        line, column = _place(error.object[: error.start].decode("utf-8"))
        raise InventoryError("is not UTF-8 text", file=file, line=line, column=column) from None
    for pattern, what, hint in (
        (_CONTROL, "holds a control character or a byte order mark", "remove it"),
        (_TAB_INDENT, "is indented with a tab", "indent with spaces"),
    ):
        match = pattern.search(text)
        if match and not (tabs and pattern is _TAB_INDENT):
            line, column = _place(text[: match.end() - 1])
            raise InventoryError(what, file=file, line=line, column=column, hint=hint)
    return text


def parse(text: str, file: str, *, placed: bool = True, foreign: bool = False) -> Node:
    """Return the only document in ``text``; without ``placed`` (a value from the command line) it has no positions.

    ``foreign``: the file belongs to another tool. Its scalars are text or empty.

    Raises:
        InventoryError: not YAML, or YAML that readers read differently.
    """
    return _Reader(text, file, placed, foreign).document()


def _joined(text: str) -> str:
    """Join the two escapes that JSON writes for a character beyond U+FFFF."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return text  # half a pair: refused later, with the key's path


def _place(before: str) -> tuple[int, int]:
    """Return line and column of the character after ``before``."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


class _Reader:
    """Turns the events of a document into nodes; ``path`` is the place in the document, for messages."""

    def __init__(self, text: str, file: str, placed: bool, foreign: bool = False) -> None:
        self._file = file
        self._placed = placed
        self._foreign = foreign
        self._events = YAML(typ="safe", pure=True).parse(text)

    def document(self) -> Node:
        self._next(())  # the stream's start
        start = self._next(())
        if isinstance(start, StreamEndEvent):
            return Node(self._file, *((1, 1) if self._placed else (None, None)))
        if start.version or start.tags:
            raise self._fault((), "YAML directives are not allowed", start, "remove the line that starts with %")
        root = self._node(self._next(()), ())
        self._next(())  # the document's end
        end = self._next(())
        if not isinstance(end, StreamEndEvent):
            raise self._fault((), "a second YAML document starts here", end, "keep one document in the file")
        return root

    def _next(self, path: Path) -> Any:
        try:
            return next(self._events)
        except MarkedYAMLError as error:
            place = self._at(error.problem_mark or error.context_mark)
            message = f"is not valid YAML: {error.problem or 'cannot be read'}"
        except (YAMLError, ValueError, OverflowError, IndexError) as error:
            place = (None, None)
            message = f"is not valid YAML ({type(error).__name__})"
        raise self._error(path, message, place)

    def _node(self, event: Any, path: Path) -> Node:
        self._refuse_references(event, path)
        return self._value(event, path)

    def _value(self, event: Any, path: Path) -> Node:
        node = Node(self._file, *self._at(event.start_mark))
        if isinstance(event, ScalarEvent):
            # A value below env may be a secret, so messages do not repeat it.
            node.value = self._scalar(event, path, repeat="env" not in path)
        elif len(path) >= YAML_DEPTH:
            raise self._fault(path, f"is nested more than {YAML_DEPTH} levels deep", event)
        elif isinstance(event, SequenceStartEvent):
            node.value = self._items(path)
        else:
            node.value = self._mapping(path, node.key_at)
        return node

    def _items(self, path: Path) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self._next((*path, len(items))), SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path, key_at: dict[str, Place]) -> dict[str, Node]:
        items: dict[str, Node] = {}
        while not isinstance(event := self._next(path), MappingEndEvent):
            key = self._key(event, path)
            inner = (*path, key)
            if key in key_at:
                first = key_at[key][0]
                where = f" (first in line {first})" if first is not None else ""
                raise self._fault(inner, f"is given twice{where}", event, "remove one of the two")
            key_at[key] = self._at(event.start_mark)
            items[key] = self._node(self._next(inner), inner)
        return items

    def _key(self, event: Any, path: Path) -> str:
        self._refuse_references(event, path)
        if not isinstance(event, ScalarEvent):
            raise self._fault(path, "a key must be text", event)
        key = self._scalar(event, path, repeat=True)
        if not isinstance(key, str):
            raise self._fault(path, f"the key {event.value!r} is not text", event, "quote it")
        return key

    def _refuse_references(self, event: Any, path: Path) -> None:
        if isinstance(event, AliasEvent):
            raise self._fault(path, "YAML aliases are not allowed", event, "write the value out")
        if event.anchor is not None:
            raise self._fault(path, "YAML anchors are not allowed", event, "remove it and write values out")
        if event.ctag is not None:
            raise self._fault(path, "YAML tags are not allowed", event, "remove what starts with '!', or quote it")

    def _scalar(self, event: ScalarEvent, path: Path, *, repeat: bool) -> Scalar:
        text = _joined(event.value)
        if event.style is not None:
            return text
        if self._foreign:
            return None if text in _NULL else text
        try:
            return plain_scalar(text, path)
        except LookAlike as error:
            shown = f"{text!r} " if repeat else ""
            raise self._fault(path, f"{shown}{error}", event, error.hint) from None

    def _fault(self, path: Path, message: str, event: Any, hint: str | None = None) -> InventoryError:
        return self._error(path, message, self._at(event.start_mark), hint)

    def _error(self, path: Path, message: str, place: Place, hint: str | None = None) -> InventoryError:
        line, column = place
        return InventoryError(
            message, file=self._file, line=line, column=column, path=shown_path(path) or None, hint=hint
        )

    def _at(self, mark: Any) -> Place:
        return (mark.line + 1, mark.column + 1) if self._placed and mark is not None else (None, None)
