"""Finds Python interpreters on this host: virtual environments, conda, pyenv, the system's own.

No interpreter is run and no module imported, because an import of torch takes seconds on a cold disk. The files in the
folders give the answer.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddpctl_worker.facts.env import module_version, site_folders
from ddpctl_worker.facts.limits import MOST_INTERPRETERS
from ddpctl_worker.machine.fs import read_text

_HOME = (
    "venv",
    ".venv",
    "env",
    "*",
    "*/venv",
    "*/.venv",
    ".virtualenvs/*",
    ".local/share/virtualenvs/*",
    ".cache/pypoetry/virtualenvs/*",
    ".conda/envs/*",
    ".pyenv/versions/*",
)
_CONDA = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "conda")
_SYSTEM = ("/usr/local", "/usr", "/opt/*", "/opt/*/*")
_MODULES = ("/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh")
_MINOR = re.compile(r"python3\.(\d+)$")


def interpreters(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the interpreters, each environment once, and whether this host has environment modules.

    ``pythons``: [{"path", "version": "3.11" or ``None``, "torch": version or ``None``, "default"}]. ``path`` begins
    with ~/ below the home folder. ``default``: this interpreter runs the worker. A command over SSH does not load
    ``modules``.
    """
    home = os.path.expanduser("~")
    seen: Dict[Tuple[str, str], Dict[str, Any]] = {}
    for path in _candidates(home):
        if not os.access(path, os.X_OK):
            continue
        prefix = _prefix(path)
        minor = _minor(path, prefix)
        if minor is None:
            continue
        key = (os.path.realpath(prefix), minor)
        default = path == sys.executable
        if key in seen:
            seen[key]["default"] = seen[key]["default"] or default
            continue
        folders = site_folders() if default else _folders(prefix, minor, home)
        torch = module_version(folders, "torch")
        shown = "~" + path[len(home) :] if path.startswith(home + "/") else path
        version = torch["version"] if torch else None
        seen[key] = {"path": shown, "version": "3." + minor, "torch": version, "default": default}
    found = sorted(seen.values(), key=lambda python: (python["torch"] is None, not python["default"]))
    modules = bool(os.environ.get("MODULESHOME") or os.environ.get("LMOD_CMD"))
    return {"pythons": found[:MOST_INTERPRETERS], "modules": modules or any(os.path.exists(path) for path in _MODULES)}


def _candidates(home: str) -> Iterator[str]:
    """Yield the paths of interpreters, with the plainest names first. A path may come twice."""
    yield sys.executable
    for name in ("python3", "python"):
        found = shutil.which(name)
        if found:
            yield found
    prefixes = [os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", "")]
    prefixes += [os.path.join(home, name) for name in _HOME]
    for top in (home, "/opt"):
        prefixes += [os.path.join(top, name, part) for name in _CONDA for part in ("", "envs/*")]
    prefixes += read_text(os.path.join(home, ".conda", "environments.txt")).splitlines()
    prefixes += _SYSTEM
    for prefix in prefixes:
        if prefix:
            for folder in sorted(glob.glob(prefix.rstrip("/"))):
                for name in ("python", "python3"):
                    yield os.path.join(folder, "bin", name)


def _prefix(path: str) -> str:
    """Return an interpreter's environment: the folder with pyvenv.cfg or conda-meta, else the real program's."""
    prefix = os.path.dirname(os.path.dirname(path))
    for name in ("pyvenv.cfg", "conda-meta"):
        if os.path.exists(os.path.join(prefix, name)):
            return prefix
    return os.path.dirname(os.path.dirname(os.path.realpath(path)))


def _minor(path: str, prefix: str) -> Optional[str]:
    """Return ``11`` for Python 3.11, or ``None`` if the version is unknown or not 3."""
    match = _MINOR.search(os.path.realpath(path))
    if match:
        return match.group(1)
    libraries = [_MINOR.search(name) for name in glob.glob(os.path.join(glob.escape(prefix), "lib", "python3.*"))]
    minors = [match.group(1) for match in libraries if match]
    return minors[0] if len(minors) == 1 else None


def _folders(prefix: str, minor: str, home: str) -> List[str]:
    """Return the folders from which that interpreter imports packages, in their order."""
    library = "python3." + minor
    own = [os.path.join(prefix, lib, library, "site-packages") for lib in ("lib", "lib64")]
    config = read_text(os.path.join(prefix, "pyvenv.cfg"))
    base = prefix
    if config:
        if not re.search(r"include-system-site-packages\s*=\s*true", config, re.IGNORECASE):
            return own
        match = re.search(r"^home\s*=\s*(\S.*?)\s*$", config, re.MULTILINE)
        base = os.path.dirname(match.group(1)) if match else "/usr"
        own += [os.path.join(base, "lib", library, "site-packages")]
    own.append(os.path.join(home, ".local", "lib", library, "site-packages"))
    if base in ("/usr", "/usr/local"):
        own += [os.path.join("/usr/local/lib", library, "dist-packages"), "/usr/lib/python3/dist-packages"]
    return own
