"""The store, the distribution of files, environments, and the removal of old files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import IP, Count, File, Hash, Moment, Name, Number, Place, Port, Short, Unicode
from ddpctl.spec.origin import Origin

Version = Annotated[Unicode, Field(pattern="^([0-9a-f]{32})?$")]  # empty: it is unknown whether the entry is complete


class NothingDict(TypedDict):
    """An answer whose fields are ignored."""


class StartDict(TypedDict):
    run: Name
    origin: Origin | None


class HeldInShortDict(TypedDict):
    writer: Name
    entry: Place
    version: Version
    time: Moment
    clock: Name
    serial: Count
    run: Name | None
    attempt: Count


class HoldingsDict(TypedDict):
    sizes: dict[Hash, Count]
    partial: dict[Hash, Count]
    free: Count
    checkpoints: NotRequired[list[HeldInShortDict]]
    starts: NotRequired[Annotated[list[StartDict], Field(max_length=1000)]]
    serial: NotRequired[Count]


class JoinedDict(TypedDict):
    listening: Port
    addresses: list[IP]
    have: list[Hash]
    done: Count


class PassedDict(TypedDict):
    progress: Count


class WantedDict(TypedDict):
    want: list[tuple[Hash, Count]]


class LeftDict(TypedDict):
    left: Name
    why: Short


class CompleteDict(TypedDict):
    complete: Literal[True]


class SpreadDict(TypedDict):
    found: Count
    relayed: Count


class InstalledDict(TypedDict):
    python: File
    env: Name
    versions: dict[Short, Short | None]
    seconds: Number


class PieceDict(TypedDict):
    piece: Count


class BuiltDict(TypedDict):
    """A wheel, whose bytes came before; or the requirements that its build lacks."""

    needs: NotRequired[list[Short]]
    name: NotRequired[Place]
    hash: NotRequired[Hash]
    size: NotRequired[Count]


class ItemDict(TypedDict):
    kind: Short
    name: Short
    bytes: Count
    age_s: Number


class CollectedDict(TypedDict):
    items: list[ItemDict]
