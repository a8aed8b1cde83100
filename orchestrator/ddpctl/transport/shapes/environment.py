"""The store, the spread of files, environments, and what is cleared away."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator
from typing_extensions import NotRequired, TypedDict

from ddpctl.transport.shapes.words import IP, Count, File, Hash, Name, Number, Place, Port, Short, as_tuple


class Nothing(TypedDict):
    """An answer of which nothing is read."""


class Holdings(TypedDict):
    sizes: dict[Hash, Count]
    partial: dict[Hash, Count]
    free: Count


class Joined(TypedDict):
    listening: Port
    addresses: list[IP]
    have: list[Hash]
    done: Count


class Passed(TypedDict):
    progress: Count


class Wanted(TypedDict):
    want: list[Annotated[tuple[Hash, Count], BeforeValidator(as_tuple)]]


class Left(TypedDict):
    left: Name
    why: Short


class Complete(TypedDict):
    complete: Literal[True]


class Spread(TypedDict):
    found: Count
    relayed: Count


class Installed(TypedDict):
    python: File
    env: Name
    versions: dict[Short, Short | None]
    seconds: Number


class Piece(TypedDict):
    piece: Count


class Built(TypedDict):
    """A wheel, sent before it; or what its build needs besides."""

    needs: NotRequired[list[Short]]
    name: NotRequired[Place]
    hash: NotRequired[Hash]
    size: NotRequired[Count]


class Item(TypedDict):
    kind: Short
    name: Short
    bytes: Count
    age_s: Number


class Collected(TypedDict):
    items: list[Item]
