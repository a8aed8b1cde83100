"""Reads the index of torch.distributed.checkpoint (``.metadata``): the files that it needs. Pure.

The file is a pickle of torch's class Metadata. For each part of each tensor it holds a _StorageInfo with a file, an
offset and a length (torch/distributed/checkpoint/filesystem.py; torch 1.13 to 2.13 have the same three fields). torch
writes the index once every rank has written its own files.

Unpickling would run any code that the file names. This module follows the opcodes without running anything: a class is
only its name, an object is only the name of its class, and only the _StorageInfo fields are kept. So a file cannot run
code, and reading it takes little more memory than the file itself.
"""

from __future__ import annotations

import pickletools
import posixpath
from typing import Any, Callable, Dict, List

_CLASS, _INDEX = "_StorageInfo", "Metadata"


def references(data: bytes) -> Dict[str, int]:
    """Return the smallest size that each file must have, by its path in the checkpoint's folder.

    Raises:
        ValueError: the data is cut or damaged, is no such index, or refers to a file outside of its folder.
    """
    if data[:1] != b"\x80":
        raise ValueError("it is no pickle that torch writes")
    machine = _Machine()
    try:
        for opcode, argument, at in pickletools.genops(data):
            step = _STEPS.get(opcode.name)
            if step is None:
                raise ValueError("opcode %s at byte %s is none of an index" % (opcode.name, at))
            step(machine, argument)
        top = machine.stack.pop()
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("it is cut or damaged") from None
    if not isinstance(top, _Named) or top.name != _INDEX:
        raise ValueError("it is no index of torch.distributed.checkpoint")
    return machine.sizes


class _Named:
    """A class or an object of that class, by the name of the class."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Machine:
    """The unpickler's stack and memo. Damaged data raises IndexError, KeyError, TypeError or AttributeError."""

    def __init__(self) -> None:
        self.stack: List[Any] = []
        self.sizes: Dict[str, int] = {}
        self._marks: List[int] = []
        self._memo: List[Any] = []

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def drop(self, count: int) -> None:
        """Replace the top ``count`` values with a single unknown value."""
        if len(self.stack) < count:
            raise IndexError
        del self.stack[len(self.stack) - count :]
        self.stack.append(None)

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def unmark(self) -> int:
        """Remove the last mark and return its place in the stack."""
        return self._marks.pop()

    def since_mark(self) -> List[Any]:
        begin = self.unmark()
        found = self.stack[begin:]
        del self.stack[begin:]
        return found

    def put(self, at: int) -> None:
        if at != len(self._memo):
            if at > len(self._memo):
                raise IndexError
            self._memo[at] = self.stack[-1]
        else:
            self._memo.append(self.stack[-1])

    def get(self, at: int) -> None:
        self.stack.append(self._memo[at])

    def set_items(self, values: List[Any]) -> None:
        """Add items to a dictionary. Only strings and integers can be fields of a _StorageInfo."""
        target = self.stack[-1]
        for at in range(0, len(values), 2):
            if isinstance(values[at], str) and isinstance(values[at + 1], (str, int)):
                target[values[at]] = values[at + 1]

    def named(self, dotted: str) -> None:
        self.stack.append(_Named(dotted.rpartition(".")[2]))

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.named("%s.%s" % (module, name))

    def make(self) -> None:
        """Create an object of a class. Its arguments do not matter."""
        _, made = self.stack.pop(), self.stack.pop()
        self.stack.append(_Named(made.name) if isinstance(made, _Named) else None)

    def build(self) -> None:
        """Give an object its fields. A _StorageInfo's fields say where a part of a tensor lies."""
        fields, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, _Named) and made.name == _CLASS:
            path, offset, length = _inside(fields["relative_path"]), fields["offset"], fields["length"]
            if min(offset, length) < 0:
                raise ValueError("it refers to %d bytes at %d of %r" % (length, offset, path))
            self.sizes[path] = max(offset + length, self.sizes.get(path, 0))


def _inside(path: str) -> str:
    if posixpath.isabs(path) or posixpath.normpath(path) != path or path.split("/")[0] in ("..", ".", ""):
        raise ValueError("it refers to %r, which is not in its folder" % path)
    return path


def _value(it: _Machine, argument: Any) -> None:
    it.push(argument)


def _nothing(it: _Machine, argument: Any) -> None:
    it.push(None)


_STEPS: Dict[str, Callable[[_Machine, Any], Any]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda it, argument: None),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), _value),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "LONG4"), _value),
    **dict.fromkeys(("BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_SET"), _nothing),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"), _nothing),
    "EMPTY_DICT": lambda it, argument: it.push({}),
    "MARK": lambda it, argument: it.mark(),
    "POP": lambda it, argument: it.stack.pop(),
    "POP_MARK": lambda it, argument: it.since_mark(),
    "APPEND": lambda it, argument: it.stack.pop(),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda it, argument: it.since_mark()),
    "SETITEM": lambda it, argument: it.set_items([it.stack.pop(), it.stack.pop()][::-1]),
    "SETITEMS": lambda it, argument: it.set_items(it.since_mark()),
    **dict.fromkeys(("TUPLE", "FROZENSET"), lambda it, argument: it.drop(len(it.stack) - it.unmark())),
    "TUPLE1": lambda it, argument: it.drop(1),
    "TUPLE2": lambda it, argument: it.drop(2),
    "TUPLE3": lambda it, argument: it.drop(3),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda it, argument: it.put(argument)),
    "MEMOIZE": lambda it, argument: it.put(len(it._memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda it, argument: it.get(argument)),
    "GLOBAL": lambda it, argument: it.named(argument.replace(" ", ".")),
    "STACK_GLOBAL": lambda it, argument: it.stack_global(),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda it, argument: it.make()),
    "BUILD": lambda it, argument: it.build(),
}
