"""The interpreter, its packages, and the settings that a job inherits from this login. Nothing is imported."""

from __future__ import annotations

import glob
import os
import platform
import re
import site
import sys
import sysconfig
from typing import Any, Dict, List, Optional

import ddpctl_worker
from ddpctl_worker.facts.limits import LIBRARY_CACHE_BYTES, VARIABLE_LETTERS
from ddpctl_worker.machine.fs import read_text

_DIST = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info$")
_ASSIGN = re.compile(r"^(?P<key>__version__|cuda|hip|git_version)\s*(?::[^=]*)?=\s*(?P<value>.+?)\s*$", re.MULTILINE)
_NCCL = re.compile(r"^nvidia-nccl(-cu\d+)?$")
_PREFIXES = ("PET_", "NCCL_", "GLOO_", "TORCH", "MASTER_", "CUDA_", "OMP_", "MKL_", "KMP_", "UCX_", "FI_")
_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"}
)
# Where Amazon's installer and its documentation put the plugin for EFA.
_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
)


def python(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the interpreter of the inventory, which runs this worker, and its platform."""
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
    """Return the installed packages. ``params["python_path"]``: the job's PYTHONPATH.

    ``packages`` maps normalized names to versions. ``torch`` and ``torchvision`` hold the text of their own version.py,
    or ``None`` if they are not installed.
    """
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
    """Return the folders from which a plain run of this interpreter imports packages, in their order.

    The worker runs isolated (``-I``), which hides the user's own site-packages from ``sys.path``. The job's processes
    see these, unless the interpreter is a venv of its own. They also see the login's PYTHONPATH if the job has no
    ``python_path``.
    """
    given = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
    extra = [part for part in given.split(":") if part]
    mine = []
    isolated_venv = sys.prefix != sys.base_prefix and not _venv_sees_system()
    if not isolated_venv:
        mine = [site.getusersitepackages()]
    own = os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__)))
    known = [path for path in sys.path if path and os.path.abspath(path) != own]  # a .pth file may name any folder
    found: List[str] = []
    for path in extra + mine + known + site.getsitepackages():
        if path not in found and os.path.isdir(path):
            found.append(path)
    return found


def _venv_sees_system() -> bool:
    text = read_text(os.path.join(sys.prefix, "pyvenv.cfg"))
    return bool(re.search(r"include-system-site-packages\s*=\s*true", text, re.IGNORECASE))


def distributions(folder: str) -> Dict[str, str]:
    """Return the version of every distribution in a folder by normalized name, from the metadata folders' names."""
    found: Dict[str, str] = {}
    for entry in os.listdir(folder):
        match = _DIST.match(entry)
        if match:
            found[normalize_name(match.group("name"))] = match.group("version")
    return found


def normalize_name(name: str) -> str:
    """Return a distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def module_version(folders: List[str], module: str) -> Optional[Dict[str, Any]]:
    """Return ``version``, ``cuda``, ``hip``, ``git`` and ``path`` of a module, or ``None`` if it is not installed.

    The text of its version.py is parsed, not run.
    """
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
    """Return a quoted string's text, or ``None`` for any other expression."""
    match = re.match(r"""(['"])(.*?)\1""", text)
    return match.group(2) if match else None


def environment(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the settings of this login that steer torch and its libraries.

    variables          environment variables of torch and its libraries; no other variable is ever read
    nccl_conf          the settings in NCCL's files
    libnccl            each libnccl that LD_LIBRARY_PATH puts before torch's own
    net_plugins        NCCL's network plugins that a process finds
    plugins_elsewhere  plugins that are installed, but not found
    """
    variables = {
        name: value[:VARIABLE_LETTERS]
        for name, value in os.environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    path = params.get("library_path") or os.environ.get("LD_LIBRARY_PATH", "")
    own = params.get("conf_file") or os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"
    return {
        "variables": variables,
        "nccl_conf": {name: settings(name) for name in ("/etc/nccl.conf", own) if settings(name)},
        "libnccl": libraries(path, "libnccl.so*"),
        "net_plugins": libraries(path, "libnccl-net*.so*") + cached("libnccl-net"),
        "plugins_elsewhere": libraries(":".join(_PLUGIN_FOLDERS), "libnccl-net*.so*"),
    }


def settings(name: str) -> List[str]:
    """Return the lines of a configuration file without comments and empty lines."""
    text = read_text(os.path.expanduser(name), limit=VARIABLE_LETTERS)
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def cached(name: str) -> List[str]:
    """Return the paths in the system's library cache with a file name that begins with ``name``."""
    pattern = rb"/[\x21-\x7e]*/" + re.escape(name.encode()) + rb"[\x21-\x7e]*"
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            return sorted({path.decode() for path in re.findall(pattern, file.read(LIBRARY_CACHE_BYTES))})
    except OSError:
        return []


def libraries(path: str, name: str) -> List[str]:
    """Return the libraries of that name in a search path. Symbolic links are resolved, so that the version shows."""
    found: List[str] = []
    for folder in path.split(":"):
        if folder:
            for file in sorted(glob.glob(os.path.join(glob.escape(folder), name))):
                real = os.path.realpath(file)
                if real not in found:
                    found.append(real)
    return found
