"""The source of a package without a wheel, and its build on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uv

from ddpctl.code import pack
from ddpctl.environment.limits import BUILD_S, LINES_SHOWN
from ddpctl.environment.lock import SourcePackage
from ddpctl.environment.origins import Origins
from ddpctl.environment.resolve import explain_failure, run_program, uv_environment
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.errors import ProvisionError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

# A fixed time for archives, so that the same source always gives the same wheel.
EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_SET_UP = re.compile(r"\s*(?:Building (?:wheel|source distribution).*|warning: .*)?")


@dataclass(frozen=True)
class BuildSystem:
    """The build system of PEP 517: the requirements of a build, and the object that builds."""

    requires: tuple[str, ...] = ("setuptools>=40.8.0",)
    backend: str = "setuptools.build_meta:__legacy__"
    path: tuple[str, ...] = ()


class BuildFailed(Exception):
    """A build failed. ``lines``: the end of its output, without control characters."""

    def __init__(self, output: str) -> None:
        self.lines = last_lines(output)
        super().__init__(self.lines[-1])


def content_id(source: SourcePackage) -> str:
    """Return a key for the build's record, which is the same for the same content."""
    if source.file:
        return f"{source.file.sha256} {source.inside}"
    if source.git:
        return f"{source.commit} {source.inside}"
    return pack(_folder(source)).sha256


def _folder(source: SourcePackage) -> Path:
    return Path(source.folder) / source.inside


def obtain_source(source: SourcePackage, wheelhouse: Wheelhouse, scratch: Path) -> Path:
    """Return the source distribution, or a folder that a build may write to; below ``scratch``, which is empty.

    Raises:
        ProvisionError: the source cannot be had, or its hash differs from the lock's.
    """
    tree = scratch / "tree"
    if source.git:
        _clone(source, tree)
        return tree / source.inside
    if source.file is None:
        with tarfile.open(pack(_folder(source)).path) as archive:
            extract_sources(archive, tree)
        repository = _folder(source) / ".git"
        if repository.is_dir():  # the version may come from git tags
            (tree / ".git").write_text(f"gitdir: {repository}\n", encoding="utf-8")
        return tree
    path = scratch / source.file.filename
    path.symlink_to(wheelhouse.fetch([source.file])[source.file.sha256].path.resolve())
    if not source.inside:
        return path
    with tarfile.open(path) as archive:
        extract_sources(archive, tree)
    return next(tree.iterdir()) / source.inside


def extract_sources(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack the archive; no file of it is written outside of ``folder``.

    Raises:
        ProvisionError: this Python cannot refuse such files.
        tarfile.TarError: the archive has such a file.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ProvisionError(
            "this Python cannot unpack a source distribution safely",
            hint="run ddpctl with Python 3.10.12, 3.11.4 or newer",
        )
    archive.extraction_filter = tarfile.data_filter
    archive.extractall(folder)


def _clone(source: SourcePackage, folder: Path) -> None:
    """Clone the repository at the lock's commit, whose name is a hash of its content."""
    env = uv_environment(Origins()) | {"GIT_TERMINAL_PROMPT": "0"}
    url = source.git.removeprefix("git+")
    for words in (
        ["clone", "--quiet", "--no-checkout", "--", url, str(folder)],
        ["-C", str(folder), "checkout", "--quiet", "--detach", source.commit],
        ["-C", str(folder), "submodule", "--quiet", "update", "--init", "--recursive"],
    ):
        try:
            done = run_program(["git", *words], env, BUILD_S)
        except FileNotFoundError:
            raise ProvisionError(
                f"{source} comes from {url}, but git is not installed here", hint="install git"
            ) from None
        except subprocess.TimeoutExpired:
            raise ProvisionError(
                f"{source}: cannot get {source.commit[:12]} of {url} within {BUILD_S:g} s", hint="try git clone there"
            ) from None
        if done.returncode != 0:
            said = explain_failure(done.stderr, Origins())
            raise ProvisionError(
                f"{source}: cannot get {source.commit[:12]} of {url}: {said}", hint="try git clone there"
            )


def build_here(what: Path, kind: str, out: Path, origins: Origins) -> Path:
    """Build a ``wheel`` or ``sdist`` from a folder or a source distribution, with uv in an isolated environment.

    Raises:
        BuildFailed: the build failed or took too long; with the end of its output.
    """
    command = [uv.find_uv_bin(), "build", f"--{kind}", "--out-dir", str(out), "--no-create-gitignore"]
    command += ["--color", "never", "--python", sys.executable, str(what)]
    if origins.no_index:
        command += ["--no-index"]
    try:
        env = uv_environment(origins) | EPOCH | {"GIT_OPTIONAL_LOCKS": "0"}
        done = run_program(command, env, BUILD_S, out.parent, merge=True)
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"it took longer than {BUILD_S:g} s") from error
    made = list(out.iterdir()) if out.is_dir() else []
    if done.returncode != 0 or len(made) != 1:
        raise BuildFailed(done.stdout)
    return made[0]


def last_lines(output: str) -> list[str]:
    """Return the end of a build's output, without control characters; never empty.

    uv's own last lines only say that the build failed, so they count only if the build printed nothing.
    """
    said, _, uv_said = output.replace("\r", "\n").partition("\nerror: Failed to build")
    for text in (said, uv_said):
        lines = [_clean(line) for line in text.splitlines() if not _SET_UP.fullmatch(line)]
        lines = [line for line in lines if line.strip()]
        if lines:
            return lines[-LINES_SHOWN:]
    return ["it printed nothing"]


def _clean(line: str) -> str:
    return "".join(char for char in _ESCAPE.sub("", line).expandtabs() if char.isprintable()).rstrip()


def build_system(source: Path) -> BuildSystem:
    """Return the build system that a folder or a source distribution declares, by default setuptools.

    Raises:
        ProvisionError: its pyproject.toml cannot be read.
    """
    text = _pyproject(source)
    try:
        table: dict[str, Any] = tomllib.loads(text).get("build-system", {})
    except tomllib.TOMLDecodeError as error:
        raise ProvisionError(f"the pyproject.toml of {source.name} is broken: {error}") from None
    default = BuildSystem()
    return BuildSystem(
        tuple(table.get("requires", default.requires)),
        table.get("build-backend", default.backend),
        tuple(table.get("backend-path", ())),
    )


def _pyproject(source: Path) -> str:
    data = b""
    if source.is_dir():
        file = source / "pyproject.toml"
        data = file.read_bytes() if file.is_file() else b""
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as packed:
            name = next((name for name in packed.namelist() if _is_pyproject(name)), None)
            data = packed.read(name) if name else b""
    else:
        with tarfile.open(source) as archive:
            member = next((member for member in archive if _is_pyproject(member.name)), None)
            stream = archive.extractfile(member) if member else None
            data = stream.read() if stream else b""
    return data.decode("utf-8", "replace")


def _is_pyproject(name: str) -> bool:
    return name.removeprefix("./").count("/") == 1 and name.endswith("/pyproject.toml")
