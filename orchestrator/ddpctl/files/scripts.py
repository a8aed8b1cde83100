"""Finds the training scripts in a folder: programs that join a process group, or have a usual name."""

from __future__ import annotations

import os
from pathlib import Path

from ddpctl.files.limits import SEARCH_BYTES, SEARCH_DEPTH, SEARCH_FILES, SEARCH_FOLDERS
from ddpctl.spec.script import imported_modules, read_script

USUAL = ("train.py", "main.py")
_SKIPPED = frozenset({"venv", "env", "site-packages", "node_modules", "build", "dist", "tests", "test", "docs"})


def find_scripts(folder: Path) -> list[str]:
    """Return paths relative to ``folder``, the likeliest first, or train.py and main.py if no script joins a group."""
    texts = _texts(folder)
    joins = {name for name, text in texts.items() if read_script(text).initialises}
    modules = {Path(name).stem for name in joins}
    users = [name for name, text in texts.items() if name in joins or imported_modules(text) & modules]
    found = [name for name in users if "__main__" in texts[name] or Path(name).name in USUAL]
    found = found or users or [name for name in texts if name in USUAL]
    return sorted(found, key=lambda name: (name.count("/"), Path(name).name not in USUAL, name))


def _texts(folder: Path) -> dict[str, str]:
    """Return the Python files by path, the nearest first; unreadable files are left out."""
    found: dict[str, str] = {}
    level = [folder]
    for _ in range(SEARCH_DEPTH + 1):
        below: list[Path] = []
        for place in level:
            try:
                entries = sorted(os.scandir(place), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED or len(found) >= SEARCH_FILES:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not Path(entry.path, "pyvenv.cfg").exists():
                        below.append(Path(entry.path))
                elif entry.name.endswith(".py") and entry.is_file():
                    text = _read(Path(entry.path))
                    if text is not None:
                        found[str(Path(entry.path).relative_to(folder))] = text
        level = below[:SEARCH_FOLDERS]
    return found


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(SEARCH_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
