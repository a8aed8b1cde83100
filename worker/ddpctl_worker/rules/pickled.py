"""Reads a pickle of torch: containers, numbers and text. Pure.

The opcodes follow torch's own pickler without tensors and classes (torch/csrc/jit/serialization/pickler.cpp).

Python's pickle module is not safe here, even without classes and functions: an opcode of a hostile file can allocate
gigabytes, and a small file can describe a huge value by lists that refer to a list many times. So this reader repeats
only text. A reference to any other value gives ``None``; in a dump these are the frames of stacks.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List

_HEAD = b"\x80\x02"  # protocol 2
_STOP = ord(".")
_BYTE, _SHORT, _INT, _SIZE, _FLOAT = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I", ">d"))


def load(data: bytes) -> Any:
    """Return the pickled value.

    Raises: ValueError: the data is cut or damaged, or has more than plain values.
    """
    if not data.startswith(_HEAD):
        raise ValueError("it is no pickle of torch's")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error):
        raise ValueError("it is cut or damaged at byte %d of %d" % (machine.at, len(data))) from None


class _Machine:
    """Executes the opcodes. A damaged file raises any of the errors that ``load`` catches."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = len(_HEAD)
        self._stack: List[Any] = []
        self._marks: List[int] = []
        self._memo: Dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self._data[self.at]
            self.at += 1
            if code == _STOP:
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise ValueError("opcode 0x%02x at byte %d stands for no plain value" % (code, self.at - 1))
            step(self)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self.at)
        self.at += form.size
        return value

    def bytes(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size]
        if len(found) < size:
            raise IndexError
        self.at += size
        return found

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def since_mark(self) -> List[Any]:
        begin = self._marks.pop()
        found = self._stack[begin:]
        del self._stack[begin:]
        return found

    def append(self) -> None:
        values = self.since_mark()
        self._last(list).extend(values)

    def set_items(self) -> None:
        values = self.since_mark()
        target = self._last(dict)
        for at in range(0, len(values), 2):
            target[values[at]] = values[at + 1]

    def _last(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise TypeError
        return self._stack[-1]

    def pair(self) -> None:
        second, first = self._stack.pop(), self._stack.pop()
        self._stack.append((first, second))

    def put(self, form: struct.Struct) -> None:
        value = self._stack[-1]
        self._memo[self.number(form)] = value if isinstance(value, str) else None

    def get(self, form: struct.Struct) -> None:
        self._stack.append(self._memo[self.number(form)])


_STEPS: Dict[int, Callable[[_Machine], None]] = {
    ord("K"): lambda it: it.push(it.number(_BYTE)),
    ord("M"): lambda it: it.push(it.number(_SHORT)),
    ord("J"): lambda it: it.push(it.number(_INT)),
    ord("G"): lambda it: it.push(it.number(_FLOAT)),
    0x8A: lambda it: it.push(int.from_bytes(it.bytes(it.number(_BYTE)), "little", signed=True)),
    ord("X"): lambda it: it.push(it.bytes(it.number(_SIZE)).decode("utf-8", "replace")),
    ord("N"): lambda it: it.push(None),
    0x88: lambda it: it.push(True),
    0x89: lambda it: it.push(False),
    ord("}"): lambda it: it.push({}),
    ord("]"): lambda it: it.push([]),
    ord(")"): lambda it: it.push(()),
    ord("("): _Machine.mark,
    ord("e"): _Machine.append,
    ord("u"): _Machine.set_items,
    ord("t"): lambda it: it.push(tuple(it.since_mark())),
    0x86: _Machine.pair,
    ord("q"): lambda it: it.put(_BYTE),
    ord("r"): lambda it: it.put(_SIZE),
    ord("h"): lambda it: it.get(_BYTE),
    ord("j"): lambda it: it.get(_SIZE),
}
