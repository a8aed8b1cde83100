"""Frames, changed at random: keys and frames dropped, doubled, exchanged; values of every wrong kind; streams cut."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from ddpctl.transport.base import Frame

ESCAPE = "\x1b]52;c;Z2FyYmxl\x07\x1b[2J[red]"
DEEP = "@deep@"  # stands for a list in a list in a list ..., which no encoder would write
HUGE = "@huge@"
STRINGS = [
    "",
    "\0",
    "a\0b",
    ESCAPE,
    "../../etc/passwd",
    "/etc/passwd",
    "a",
    "c",
    "x" * 70_000,
    "\udcff\u202e\x9b",
    "nan",
]
OTHERS: list[dict[str, Any]] = [{}, {"ok": "yes"}, {"ok": False}, {"hb": 1}, {"lines": [{}]}, {"chunk": True}]
NUMBERS = [-1, 0, 1 << 31, 1 << 63, 10**30, -(10**30), 1.5, 1e308, float("nan"), float("inf"), HUGE]
VALUES: list[Any] = [None, True, False, [], {}, [[]], [None], {"a": {}}, {"": 0}, DEEP, *STRINGS, *NUMBERS]


def encode(frame: Frame) -> bytes:
    """As a worker would, if it had to."""
    data = {**frame.data, "raw": len(frame.raw)} if frame.raw and "raw" not in frame.data else dict(frame.data)
    text = json.dumps(data).replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000).replace(f'"{HUGE}"', "9" * 400)
    return text.encode("ascii") + b"\n" + frame.raw


def garbled(frames: list[Frame], rng: random.Random) -> list[bytes]:
    """The same frames as bytes, with one to three changes."""
    frames = [Frame(json.loads(json.dumps(dict(one.data))), one.raw) for one in frames]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choices((_value, _key, _frames, _raw), (10, 5, 3, 1))[0](frames, rng)
    pieces = [encode(one) for one in frames]
    if rng.random() < 0.15:
        rng.choice(BYTES)(pieces, rng)
    return pieces


def _spots(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        _spots(value[key], found)
    return found


def _spot(frames: list[Frame], rng: random.Random) -> tuple[Any, Any] | None:
    found = _spots(rng.choice(frames).data, []) if frames else []
    return rng.choice(found) if found else None


def _value(frames: list[Frame], rng: random.Random) -> None:
    """Another value in one place."""
    spot = _spot(frames, rng)
    if spot is not None:
        spot[0][spot[1]] = copy.deepcopy(rng.choice(VALUES))


def _key(frames: list[Frame], rng: random.Random) -> None:
    """A key less, or a key with another name, or an item twice."""
    spot = _spot(frames, rng)
    if spot is None:
        return
    where, key = spot
    if isinstance(where, list):
        where.append(copy.deepcopy(where[key]))
    else:
        value = where.pop(key)
        if rng.random() < 0.4:
            where[rng.choice((*STRINGS, "ok", "hb", "raw", "lines"))] = value


def _frames(frames: list[Frame], rng: random.Random) -> None:
    """A frame less, twice, or in another's place; or a value of another kind."""
    if not frames:
        return
    place = rng.randrange(len(frames))
    how = rng.randrange(5)
    if how == 0:
        del frames[place]
    elif how == 1:
        frames.insert(place, copy.deepcopy(frames[place]))
    elif how == 2:
        frames.append(frames.pop(place))
    elif how == 3:
        frames.insert(place, Frame(copy.deepcopy(rng.choice(OTHERS))))
    else:
        kind = rng.choice(("bug", "no_such_run", "corrupt", ESCAPE))
        error = {"kind": kind, "message": ESCAPE, "hint": copy.deepcopy(rng.choice(VALUES))}
        frames.insert(place, Frame({"ok": False, "error": error}))


def _raw(frames: list[Frame], rng: random.Random) -> None:
    """More raw bytes, fewer, or another byte count."""
    if not frames:
        return
    place = rng.randrange(len(frames))
    one = frames[place]
    size = rng.choice((0, 1, 70_000))
    frames[place] = Frame({**one.data, **rng.choice(({}, {"raw": size}, {"raw": -1}, {"raw": 1 << 60}))}, b"x" * size)


def _cut(pieces: list[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(pieces) or 1)
    pieces[place:] = [piece[: rng.randrange(len(piece) + 1)] for piece in pieces[place : place + 1]]


def _junk(pieces: list[bytes], rng: random.Random) -> None:
    lines = (b"\n\n", b"[]\n", b"7\n", b"\xff\xfe{}\n", b"{" * 5000 + b"\n", b"x" * (5 << 20), ESCAPE.encode())
    junk = rng.choice((rng.randbytes(200), *lines))
    pieces.insert(rng.randrange(len(pieces) + 1), junk)


BYTES: list[Callable[[list[bytes], random.Random], None]] = [_cut, _junk]
