"""Chooses the files of a folder that are a job's code."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pathspec import GitIgnoreSpec

from ddpctl.code import git
from ddpctl.code.limits import SHOWN_SECRETS
from ddpctl.errors import ProvisionError

IGNORE_FILE = ".ddpctlignore"
# Where `ddpctl fetch` writes: results are never code, whatever .ddpctlignore says.
RUNS_FOLDER = "ddpctl-runs"
# Patterns that are never code in a folder without git. A `!pattern` in .ddpctlignore includes files again.
BUILTIN = (
    ".git",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[co]",
    ".venv/",
    "venv/",
    ".tox/",
    ".nox/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    "node_modules/",
    ".DS_Store",
)
# Keys and passwords by their usual names. They are left out of every folder; a `!pattern` includes files again.
SECRETS = (".env*", ".netrc", ".ssh/", ".aws/", ".kube/", "id_*", "!id_*.py", "*.pem", "*.key")


@dataclass(frozen=True)
class Member:
    """A member of the archive. ``name`` is relative to the folder and keeps bytes that are not UTF-8."""

    name: str
    kind: str  # "file", "link" or "folder" (an empty folder)
    size: int = 0
    executable: bool = False
    target: str = ""  # of a link


@dataclass(frozen=True)
class Listing:
    """The members in archive order, and git's state; ``notes`` are for the user."""

    entries: tuple[Member, ...]
    git: git.GitState | None
    notes: tuple[str, ...]


_SPECIAL = re.compile(r"([\\*?\[\]! #])")  # characters with a meaning in a pattern of .gitignore


class _Patterns:
    """The patterns of names that are not code, and the names that only SECRETS leaves out (``secrets``)."""

    def __init__(self, builtin: Iterable[str], ignored: Sequence[str]) -> None:
        self.secrets: list[str] = []
        self._all = GitIgnoreSpec.from_lines([*builtin, *SECRETS, *ignored])
        self._without_secrets = GitIgnoreSpec.from_lines([*builtin, *ignored])

    def match(self, name: str) -> bool:
        if not self._all.match_file(name):
            return False
        if not self._without_secrets.match_file(name):
            self.secrets.append(name)
        return True


def list_code(folder: Path, exclude: Iterable[Path | str] = (), replaced: Iterable[str] = ()) -> Listing:
    """Return every member of ``folder`` to send. Arguments as in ``pack``.

    Raises:
        ProvisionError: a link that leads out, a socket or device, an unreadable folder, or a git command that fails.
    """
    notes: list[str] = []
    ignored = [*_ignore_file(folder), *("/" + _SPECIAL.sub(r"\\\1", name) for name in replaced)]
    if git.in_work_tree(folder):
        patterns = _Patterns([".git"], ignored)
        repositories: list[str] = []
        listed = list(_git_names(folder, "", notes, repositories))
        names: Iterable[str] = (name for name in listed if not patterns.match(name))
        state: git.GitState | None = _read_state(folder, repositories)
    else:
        patterns = _Patterns(BUILTIN, ignored)
        names = _walk(folder, patterns)
        state = None
    names = (name for name in names if RUNS_FOLDER not in name.split("/"))
    secret = {_identity(Path(path)) for path in exclude} - {None}
    entries = (_entry(folder, name) for name in names if not _behind_link(folder, name))
    kept = [e for e in entries if e is not None and _identity(folder / e.name, follow=False) not in secret]
    if patterns.secrets:
        notes.append(_about_secrets(patterns.secrets))
    return Listing(tuple(sorted(set(kept), key=lambda e: os.fsencode(e.name))), state, tuple(notes))


def _about_secrets(names: Sequence[str]) -> str:
    shown = [os.fsencode(name).decode("utf-8", "replace") for name in sorted(names)]
    more = f" and {len(shown) - SHOWN_SECRETS} more" if len(shown) > SHOWN_SECRETS else ""
    return (
        f"not sent, because the names are those of keys and passwords: {', '.join(shown[:SHOWN_SECRETS])}{more} "
        f"(to send a file: !/NAME in {IGNORE_FILE})"
    )


def _ignore_file(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text("utf-8").splitlines()
        GitIgnoreSpec.from_lines(lines)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ProvisionError(
            f"{folder / IGNORE_FILE} cannot be used: {error}", hint="it is read like a .gitignore"
        ) from None
    return lines


def _read_state(folder: Path, repositories: Iterable[str]) -> git.GitState:
    """Return the folder's state; it is dirty as soon as a repository inside is."""
    state = git.read_state(folder)
    return replace(state, dirty=state.dirty or any(git.read_state(folder / path).dirty for path in repositories))


def _git_names(folder: Path, prefix: str, notes: list[str], repositories: list[str]) -> Iterator[str]:
    """Yield git's files, with the files of submodules and of repositories inside. The paths of these are added."""
    for name in git.list_files(folder / prefix):
        path = prefix + name.rstrip("/")
        real = folder / path
        if not real.is_dir() or real.is_symlink():
            yield path
        elif (real / ".git").exists():
            repositories.append(path)
            yield from _git_names(folder, path + "/", notes, repositories)
        elif not any(real.iterdir()):
            notes.append(f"the submodule {path} is not checked out; its files are not sent")


def _walk(folder: Path, patterns: _Patterns, prefix: str = "") -> Iterator[str]:
    """Yield every file below the folder that no pattern excludes, and empty folders with a ``/`` at the end."""
    try:
        found = sorted(os.scandir(folder / prefix), key=lambda item: item.name)
    except OSError as error:
        raise ProvisionError(f"{folder / prefix} cannot be read: {error.strerror}", hint=_leave_out(prefix)) from None
    if not found and prefix:
        yield prefix
    for item in found:
        name = prefix + item.name
        if item.is_dir(follow_symlinks=False):
            if item.name != RUNS_FOLDER and not patterns.match(name + "/"):
                yield from _walk(folder, patterns, name + "/")
        elif not patterns.match(name):
            yield name


def _behind_link(folder: Path, name: str) -> bool:
    """Return whether a folder on the way is a link now: git still lists the files that were below it."""
    return any((folder / parent).is_symlink() for parent in Path(name).parents)


def _entry(folder: Path, name: str) -> Member | None:
    """Return the member with this name, or None if it is tracked but deleted."""
    path = folder / name
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProvisionError(f"{path} cannot be read: {error.strerror}", hint=_leave_out(name)) from None
    if stat.S_ISREG(info.st_mode):
        return Member(name, "file", info.st_size, bool(info.st_mode & 0o100))
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(path)  # noqa: PTH115 (a Path would tidy the target up)
        _check_link(folder, name, target)
        return Member(name, "link", target=target)
    if stat.S_ISDIR(info.st_mode):
        return Member(name.rstrip("/"), "folder")
    raise ProvisionError(f"{path} is a socket, a pipe or a device, not code", hint=_leave_out(name))


def _check_link(folder: Path, name: str, target: str) -> None:
    """Check that a link stays inside, both as written and as resolved: the node has no other files."""
    written = os.path.normpath(os.path.join(os.path.dirname(name), target))  # noqa: PTH118, PTH120
    inside = not os.path.isabs(target) and written.split("/")[0] != ".."  # noqa: PTH117
    if inside:
        root = os.path.realpath(folder)
        real = os.path.realpath(folder / name)
        inside = real == root or real.startswith(root + "/")
    if not inside:
        shown = os.fsencode(target).decode("utf-8", "replace")
        raise ProvisionError(f"{folder / name} is a link out of the code folder, to {shown}", hint=_leave_out(name))


def _leave_out(name: str) -> str:
    return f"leave it out: add /{name} to {IGNORE_FILE}"


def _identity(path: Path, follow: bool = True) -> tuple[int, int] | None:
    try:
        info = path.stat() if follow else path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino
