"""The interpreter and what is installed beside it, read from files: importing torch would cost seconds."""

from __future__ import annotations

import os
import platform
import re
import site
import sys
import sysconfig
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import read_text

_DIST = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info$")
_ASSIGN = re.compile(r"^(?P<key>__version__|cuda|hip|git_version)\s*(?::[^=]*)?=\s*(?P<value>.+?)\s*$", re.MULTILINE)
_NCCL = re.compile(r"^nvidia-nccl(-cu\d+)?$")


def python(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """The interpreter of the inventory, which runs this worker, and the platform it was built for."""
    libc, libc_version = platform.libc_ver()
    return {
        "version": platform.python_version(),
        "info": list(sys.version_info[:3]),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "venv": sys.prefix != sys.base_prefix,
        "implementation": platform.python_implementation(),
        "platform": sysconfig.get_platform(),
        "machine": os.uname().machine,
        "libc": libc,
        "libc_version": libc_version,
        "kernel": os.uname().release,
    }


def versions(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """What is installed: ``packages`` maps normalized names to versions; ``torch`` and ``torchvision`` hold what their
    own version.py says, or None where they are not installed. ``params["python_path"]``: the job's PYTHONPATH."""
    folders = site_folders(params.get("python_path"))
    packages: Dict[str, str] = {}
    for folder in reversed(folders):  # the first folder on the path wins
        packages.update(distributions(folder))
    torch = module_version(folders, "torch")
    nccl = [packages[name] for name in sorted(packages) if _NCCL.match(name)]
    return {
        "torch": torch,
        "torchvision": module_version(folders, "torchvision"),
        "nccl": nccl[0] if nccl else None,
        "has_launch": bool(torch and os.path.exists(os.path.join(torch["path"], "distributed", "launch.py"))),
        "packages": packages,
        "folders": folders,
    }


def site_folders(python_path: Optional[str] = None) -> List[str]:
    """The folders that a plain run of this interpreter imports packages from, first one first.

    The worker itself runs isolated (``-I``), which hides the user's own site-packages from ``sys.path``; the job's
    processes do see them unless the interpreter is a venv of its own.
    """
    extra = [part for part in (python_path or "").split(":") if part]
    mine = []
    isolated_venv = sys.prefix != sys.base_prefix and not _venv_sees_system()
    if not isolated_venv:
        mine = [site.getusersitepackages()]
    known = [path for path in sys.path if "-packages" in path]
    found: List[str] = []
    for path in extra + mine + known + site.getsitepackages():
        if path not in found and os.path.isdir(path):
            found.append(path)
    return found


def _venv_sees_system() -> bool:
    text = read_text(os.path.join(sys.prefix, "pyvenv.cfg"))
    return bool(re.search(r"include-system-site-packages\s*=\s*true", text, re.IGNORECASE))


def distributions(folder: str) -> Dict[str, str]:
    """Normalized name -> version of every distribution in a folder, by the names of its metadata folders."""
    found: Dict[str, str] = {}
    for entry in os.listdir(folder):
        match = _DIST.match(entry)
        if match:
            found[normalized(match.group("name"))] = match.group("version")
    return found


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def module_version(folders: List[str], module: str) -> Optional[Dict[str, Any]]:
    """A module's own version.py, parsed as text: ``version``, ``cuda``, ``hip``, ``git``, ``path``; None: not there."""
    for folder in folders:
        path = os.path.join(folder, module)
        text = read_text(os.path.join(path, "version.py"))
        if not text:
            continue
        values = {m.group("key"): _literal(m.group("value")) for m in _ASSIGN.finditer(text)}
        return {
            "version": values.get("__version__"),
            "cuda": values.get("cuda"),
            "hip": values.get("hip"),
            "git": values.get("git_version"),
            "path": path,
        }
    return None


def _literal(text: str) -> Optional[str]:
    """A quoted string's text; None for anything else (``None`` above all)."""
    match = re.match(r"""(['"])(.*?)\1""", text)
    return match.group(2) if match else None
