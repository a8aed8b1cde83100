"""Checkpoints of a job, as a host has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from ddpctl.spec.bounds import IP, Count, Hash, Moment, Name, Place, Port, Unicode, Whole


def _in_entry(value: str) -> str:
    """Check the path of a file within an entry; it is empty for an entry that is a file."""
    if value and (value.startswith("/") or {"", ".", ".."} & set(value.split("/")) or "\0" in value):
        raise ValueError(f"a file named {value[:200]!r} is not taken")
    return value


PathInEntry = Annotated[Unicode, Field(max_length=4000), AfterValidator(_in_entry)]


class KeptFileDict(TypedDict):
    size: Count
    sha256: Hash
    mtime_ns: Whole
    save: Count | None


class ManifestDict(TypedDict):
    entry: Place
    host: Name
    step: Count | None
    time: Moment
    size: Count
    files: Annotated[dict[PathInEntry, KeptFileDict], Field(min_length=1)]
    references: dict[PathInEntry, Count] | None
    version: Annotated[Unicode, Field(pattern="^[0-9a-f]{32}$")]
    serial: Count
    run: Name | None
    attempt: Count
    clock: Name


class UnknownDict(TypedDict):
    entry: Place
    host: Name
    step: Count | None
    time: Moment
    size: Count


class HeldDict(TypedDict):
    manifests: Annotated[list[ManifestDict], Field(max_length=100_000)]
    unknown: Annotated[list[UnknownDict], Field(max_length=100_000)]


class AsideDict(TypedDict):
    name: Annotated[Unicode, Field(pattern=r"^[A-Za-z0-9._-]{1,63}@[0-9TZ]{16}$")] | None


class LentDict(TypedDict):
    """The checkpoint that a host has, sent before the host learns which files it lacks."""

    manifest: ManifestDict


class MovedDict(TypedDict):
    """Bytes that the host has hashed and fetched so far."""

    moved: Count


class LendingDict(TypedDict):
    listening: Port
    addresses: list[IP]


class RenamedDict(TypedDict):
    entry: Place
    name: Place


class RestoredDict(TypedDict):
    bytes: Count
    aside: Annotated[list[RenamedDict], Field(max_length=100_000)]
