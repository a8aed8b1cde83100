"""Checks a wheel that a node has built: its content matches its file name, and no code in it runs by itself."""

from __future__ import annotations

import re
import stat
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ddpctl.environment.limits import WHEEL_FILES, WHEEL_METADATA_BYTES

# Files that Python runs at every start, in a folder of packages or below the prefix.
_AT_START = re.compile(
    r"(?:[^/]+|[^/]+\.data/.*)\.pth|(?:[^/]+\.data/(?:pure|plat)lib/)?(?:site|user)customize\.py", re.I
)


class BadWheel(Exception):
    """The wheel does not match its name; the text says why."""


def check_wheel(path: Path) -> None:
    """Compare the content of a wheel with its file name.

    Raises:
        BadWheel: a path outside of the wheel, code that runs at every start of Python, or another name, version or tag.
    """
    name, version, _, tags = parse_wheel_filename(path.name)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_paths(members)
            info = _info_folder(members)
            metadata, wheel = (_headers(archive, f"{info}/{file}") for file in ("METADATA", "WHEEL"))
    except (zipfile.BadZipFile, OSError, KeyError, UnicodeDecodeError, NotImplementedError, RuntimeError) as error:
        raise BadWheel(f"cannot be read: {error}") from None
    if canonicalize_name(metadata.get("Name", "")) != name:
        raise BadWheel(f"is {metadata.get('Name')!r} by its METADATA")
    if _version(metadata.get("Version", "")) != version:
        raise BadWheel(f"is version {metadata.get('Version')!r} by its METADATA")
    within: set[Tag] = set().union(*(parse_tag(tag) for tag in wheel.get_all("Tag", ())))
    if within != set(tags):
        raise BadWheel("is for " + (", ".join(sorted(map(str, within))) or "no platform") + " by its WHEEL")


def _check_paths(members: list[zipfile.ZipInfo]) -> None:
    names = [member.filename for member in members]
    if len(names) > WHEEL_FILES or len(set(names)) != len(names):
        raise BadWheel(f"has more than {WHEEL_FILES} files, or a file twice")
    for member in members:
        path = PurePosixPath(member.filename)
        link = stat.S_ISLNK(member.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or "\0" in member.filename or link:
            raise BadWheel(f"has a path that leads out of it: {member.filename!r}")
        if _AT_START.fullmatch(member.filename):
            raise BadWheel(f"has code that runs whenever Python starts: {member.filename!r}")


def _info_folder(members: list[zipfile.ZipInfo]) -> str:
    folders = {member.filename.partition("/")[0] for member in members}
    found = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(found) != 1:
        raise BadWheel(f"has {len(found)} .dist-info folders")
    return found[0]


def _headers(archive: zipfile.ZipFile, name: str) -> Message:
    with archive.open(name) as file:
        return HeaderParser().parsestr(file.read(WHEEL_METADATA_BYTES).decode("utf-8"))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
