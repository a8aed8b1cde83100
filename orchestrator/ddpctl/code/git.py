"""Asks git which files belong to a folder. A failure of git is an error: ddpctl never sends other files instead."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ddpctl.code.limits import GIT_S
from ddpctl.errors import ProvisionError

# A repository may configure commands; listing files needs no such command. Of a submodule only the commit is compared:
# git would look at its files with the commands that the submodule configures.
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")
_STATUS = ("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")


@dataclass(frozen=True)
class GitState:
    """The checked-out commit (None: no commit yet) and whether the folder differs from it."""

    commit: str | None
    dirty: bool


def in_work_tree(folder: Path) -> bool:
    """Return whether the folder belongs to a git work tree and is not ignored there.

    A home folder kept in git, for example, may ignore the code folder.

    Raises:
        ProvisionError: there is a repository, but git cannot or will not read it.
    """
    if not _has_repository(folder):
        return False
    inside = _git(folder, "rev-parse", "--is-inside-work-tree")
    if inside.strip() != b"true":
        return False
    ignored = _run(folder, "check-ignore", "-q", ".")
    return ignored.returncode != 0


def _has_repository(folder: Path) -> bool:
    """Return whether git would find a ``.git`` here or above, up to the end of the file system."""
    device = folder.stat().st_dev
    for parent in (folder, *folder.parents):
        if parent.stat().st_dev != device:
            return False
        if os.path.lexists(parent / ".git"):
            return True
    return False


def list_files(folder: Path) -> list[str]:
    """Return tracked files and untracked files that are not ignored, relative to the folder; some may be deleted.

    Submodules and repositories inside the folder appear as their folder, repositories with a ``/`` at the end.
    """
    out = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [os.fsdecode(name) for name in out.split(b"\0") if name]


def read_state(folder: Path) -> GitState:
    """Return commit and dirty flag of the folder, without its submodules' files.

    The filters in the repository's own configuration do not run: whoever wrote it must not run programs here. Filters
    of the user's configuration, such as git-lfs, do.
    """
    head = _run(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = head.stdout.decode("ascii").strip() if head.returncode == 0 else None
    changes = _git(folder, *_without_filters(folder), *_STATUS)
    return GitState(commit, bool(changes) or commit is None)


def _without_filters(folder: Path) -> list[str]:
    """Return the options that switch off the filters which the repository itself configures."""
    options = []
    for scope in ("--local", "--worktree"):
        found = _run(folder, "config", scope, "--includes", "-z", "--name-only", "--get-regexp", r"^filter\.")
        for name in found.stdout.decode("utf-8", "surrogateescape").split("\0"):
            driver, _, key = name.rpartition(".")
            if "=" in name:  # `git -c` would read another name
                raise ProvisionError(f"{folder}: its git configuration has a filter with an odd name: {driver}")
            if key in ("clean", "smudge", "process", "required"):
                options += ["-c", f"{name}={'false' if key == 'required' else ''}"]
    return options


def _git(folder: Path, *words: str) -> bytes:
    done = _run(folder, *words)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        reason = said.splitlines()[0] if said else f"exit status {done.returncode}"
        raise ProvisionError(f"git cannot read {folder}: {reason}", hint=_next_step(folder, said))
    return done.stdout


def _next_step(folder: Path, said: str) -> str:
    """Return git's own remedy, which it prints as an indented command."""
    commands = [line.strip() for line in said.splitlines() if line.startswith(("\t", "    ")) and "git " in line]
    return commands[0] if commands else f"run git -C {folder} status to see why"


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    # GIT_DIR and similar variables may be set for another repository, for example in a hook.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.endswith("_PATH")}
    env.update(GIT_OPTIONAL_LOCKS="0", LC_ALL="C")
    env.update({name: os.environ[name] for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM") if name in os.environ})
    try:
        return subprocess.run(
            ["git", *_OPTIONS, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S,
            check=False,
        )
    except FileNotFoundError:
        hint = "install git, or remove its .git folder to send everything"
        raise ProvisionError(f"{folder} is in a git repository, but git is not installed here", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise ProvisionError(f"git did not answer in {GIT_S} s for {folder}", hint="run git status there") from None
