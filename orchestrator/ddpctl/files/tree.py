"""A strict YAML reader: one document as a tree that knows the line and column of everything in it.

Works on ruamel.yaml's event stream, so that what a composed document hides (aliases, anchors, tags, a key that is
a duplicate key, a second document) is seen, and a deeply nested file costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from ddpctl.errors import InventoryError
from ddpctl.files.scalars import LookAlike, Scalar, plain_scalar

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
_TAB_INDENT = re.compile(r"(?m)^ *\t")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufeff\ufffe\uffff]")

Path = tuple[str | int, ...]


@dataclass
class Node:
    """A value and where it stands (1-based); ``key_at`` is where the key of each item of a mapping stands."""

    file: str
    line: int | None
    column: int | None
    value: Scalar | list[Node] | dict[str, Node] = None
    key_at: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def plain(self) -> Any:
        """The value as plain Python, without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def shown_path(path: Sequence[str | int]) -> str:
    """``jobs.resnet_ddp.args[2]``"""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return words.removeprefix(".")


def decode(data: bytes, file: str) -> str:
    """The text of a file.

    Raises:
        InventoryError: too big, not UTF-8, or characters in it that no text file has.
    """
    if len(data) > MAX_BYTES:
        raise InventoryError(f"is {len(data)} bytes long; {MAX_BYTES} is the limit", file=file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode("utf-8"))
        raise InventoryError("is not UTF-8 text", file=file, line=line, column=column) from None
    for pattern, what, hint in (
        (_CONTROL, "holds a control character or a byte order mark", "remove it"),
        (_TAB_INDENT, "is indented with a tab", "indent with spaces"),
    ):
        match = pattern.search(text)
        if match:
            line, column = _place(text[: match.end() - 1])
            raise InventoryError(what, file=file, line=line, column=column, hint=hint)
    return text


def parse(text: str, file: str, *, placed: bool = True) -> Node:
    """The one document in ``text``; without ``placed`` (a value from the command line) it has no lines.

    Raises:
        InventoryError: not YAML, or YAML that means different things to different readers.
    """
    builder = _Builder(file, placed)
    try:
        for event in _events(text):
            builder.add(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise builder.fault(f"is not valid YAML: {error.problem or 'cannot be read'}", mark) from None
    except (YAMLError, ValueError, OverflowError, IndexError) as error:
        raise builder.fault(f"is not valid YAML ({type(error).__name__})", None) from None
    return builder.root or Node(file, 1 if placed else None, 1 if placed else None, None)


def _events(text: str) -> Iterator[Event]:
    yaml = YAML(typ="safe", pure=True)
    yield from yaml.parse(text)


def _joined(text: str) -> str:
    """JSON writes what lies beyond U+FFFF as two escapes; together they are one character."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return text  # half a pair: refused later, with the key's path


def _place(before: str) -> tuple[int, int]:
    """Line and column of the character after ``before``."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


class _Builder:
    """Turns events into nodes, without recursion."""

    def __init__(self, file: str, placed: bool) -> None:
        self.file = file
        self.root: Node | None = None
        self._placed = placed
        self._open: list[Node] = []
        self._key: list[str | None] = []  # the key that waits for its value, one for every open node
        self._documents = 0

    def fault(self, message: str, mark: Any, hint: str | None = None, path: Path | None = None) -> InventoryError:
        line, column = self._at(mark) if mark is not None else (None, None)
        shown = shown_path(self._path() if path is None else path) or None
        return InventoryError(message, file=self.file, line=line, column=column, path=shown, hint=hint)

    def add(self, event: Event) -> None:
        mark = event.start_mark
        if isinstance(event, AliasEvent):
            raise self.fault("YAML aliases are not allowed", mark, "write the value out")
        if isinstance(event, DocumentStartEvent):
            self._start_document(event, mark)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._close()
        elif isinstance(event, (ScalarEvent, MappingStartEvent, SequenceStartEvent)):
            self._check_node(event, mark)
            if isinstance(event, ScalarEvent):
                self._scalar(event, mark)
            else:
                self._collection({} if isinstance(event, MappingStartEvent) else [], mark)

    def _close(self) -> None:
        self._open.pop()
        self._key.pop()
        if self._key:
            self._key[-1] = None  # the collection was the value of this key

    def _start_document(self, event: DocumentStartEvent, mark: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self.fault("a second YAML document starts here", mark, "keep one document in the file")
        if event.version or event.tags:
            raise self.fault("YAML directives are not allowed", mark, "remove the line that starts with %")

    def _check_node(self, event: Any, mark: Any) -> None:
        if event.anchor is not None:
            raise self.fault("YAML anchors are not allowed", mark, "remove it and write values out")
        if event.ctag is not None:
            raise self.fault("YAML tags are not allowed", mark, "remove what starts with '!', or quote it")

    def _scalar(self, event: ScalarEvent, mark: Any) -> None:
        text = _joined(event.value)
        awaits_key = bool(self._open) and isinstance(self._open[-1].value, dict) and self._key[-1] is None
        value: Scalar = text
        if event.style is None:
            try:
                value = plain_scalar(text)
            except LookAlike as error:
                raise self.fault(f"{self._named(text, awaits_key)}{error}", mark, error.hint) from None
        if awaits_key:
            self._take_key(value, text, mark)
        else:
            line, column = self._at(mark)
            self._place_node(Node(self.file, line, column, value))

    def _named(self, text: str, is_key: bool) -> str:
        """The scalar itself, for a message; a value below ``env`` may be a secret and is not repeated."""
        return f"{text!r} " if is_key or "env" not in self._path() else ""

    def _take_key(self, value: Scalar, text: str, mark: Any) -> None:
        if not isinstance(value, str):
            raise self.fault(f"the key {text!r} is not text", mark, "quote it")
        items = self._open[-1]
        if value in items.key_at:
            first = items.key_at[value][0]
            where = f" (first in line {first})" if first is not None else ""
            raise self.fault("is given twice" + where, mark, "remove one of the two", path=(*self._path(), value))
        items.key_at[value] = self._at(mark)
        self._key[-1] = value

    def _collection(self, value: list[Node] | dict[str, Node], mark: Any) -> None:
        if self._open and isinstance(self._open[-1].value, dict) and self._key[-1] is None:
            raise self.fault("a key must be text", mark)
        if len(self._open) >= MAX_DEPTH:
            raise self.fault(f"is nested more than {MAX_DEPTH} levels deep", mark)
        line, column = self._at(mark)
        node = Node(self.file, line, column, value)
        self._place_node(node)
        self._open.append(node)
        self._key.append(None)

    def _place_node(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1].value
        if isinstance(parent, list):
            parent.append(node)
        elif isinstance(parent, dict):
            key = self._key[-1]
            assert key is not None
            parent[key] = node
            if not isinstance(node.value, (list, dict)):
                self._key[-1] = None

    def _path(self) -> Path:
        """Where the builder stands now."""
        path: list[str | int] = []
        for node, key in zip(self._open, self._key, strict=True):
            if isinstance(node.value, list):
                path.append(len(node.value) - (0 if node is self._open[-1] else 1))
            elif key is not None:
                path.append(key)
        return tuple(path)

    def _at(self, mark: Any) -> tuple[int | None, int | None]:
        return (mark.line + 1, mark.column + 1) if self._placed else (None, None)
