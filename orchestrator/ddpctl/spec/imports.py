"""Finds the imports that a program runs when it starts, from the texts of the program and of the files it imports.

A module's body runs when the module is imported, so its imports count. An import has a guard if it may not run (in a
function, under a condition) or if its failure is caught. Such an import is no reason to refuse a launch. No code is run
here.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ddpctl.spec.limits import MAX_FILES
from ddpctl.spec.source import GUARDS, NEEDED, OPTIONAL, SourceFault, changes_path, imports_of, parse

# Modules of the standard library that a node's Python may lack: removed, added, or in need of a system library.
# fmt: off
_NOT_EVERYWHERE = frozenset({
    "aifc", "asynchat", "asyncore", "audioop", "bz2", "cgi", "cgitb", "chunk", "crypt", "ctypes", "curses", "dbm",
    "distutils", "graphlib", "imghdr", "imp", "lib2to3", "lzma", "mailcap", "msilib", "nis", "nntplib",
    "ossaudiodev", "pipes", "readline", "smtpd", "sndhdr", "spwd", "sqlite3", "ssl", "sunau", "telnetlib",
    "tkinter", "tomllib", "turtle", "uu", "xdrlib", "zoneinfo",
})
# Packages with other names than their modules.
_PACKAGES = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "PyYAML",
    "dateutil": "python-dateutil",
    "attr": "attrs",
    "faiss": "faiss-cpu",
    "hydra": "hydra-core",
    "pytorch_lightning": "pytorch-lightning",
}
# Packages with the names of their modules. The name of any other module may belong to a stranger's package.
_SAME_NAME = frozenset({
    "accelerate", "datasets", "deepspeed", "diffusers", "einops", "evaluate", "h5py", "lightning", "matplotlib",
    "numpy", "omegaconf", "pandas", "peft", "psutil", "requests", "safetensors", "scipy", "sentencepiece",
    "tensorboard", "timm", "tokenizers", "torchaudio", "torchmetrics", "torchvision", "tqdm", "transformers", "wandb",
})
# fmt: on
_EVERYWHERE = sys.stdlib_module_names - _NOT_EVERYWHERE | {"__future__", "__main__"}


@dataclass(frozen=True)
class Import:
    """A statement that imports a module from outside the folder (``from torch import nn``), and its place."""

    statement: str
    file: str
    line: int | None  # None: the statement is in no file
    guard: str = NEEDED

    @property
    def module(self) -> str:
        return self.statement.split()[1]

    @property
    def where(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Imports:
    """The imports of a program. ``statements``: in the order in which they run.

    ``certain``: False if the program changes its search path: a module that was not found may be found when it runs.
    ``unread``: files of the program whose imports are not known.
    """

    statements: tuple[Import, ...] = ()
    faults: tuple[SourceFault, ...] = ()
    certain: bool = True
    unread: tuple[str, ...] = ()

    @property
    def tried(self) -> tuple[Import, ...]:
        """Return the statements that will run, with or without a handler for their failure."""
        return tuple(statement for statement in self.statements if statement.guard != OPTIONAL)


def package_of(module: str) -> str:
    """Return the package that probably has the module."""
    top = module.split(".")[0]
    return _PACKAGES.get(top, top)


def packages_of(imports: Imports) -> tuple[list[str], list[str]]:
    """Return the packages that the program needs besides torch, and the modules whose package is not known."""
    modules = dict.fromkeys(imported.module.split(".")[0] for imported in imports.tried)
    known = [package_of(module) for module in modules if module in _SAME_NAME or module in _PACKAGES]
    return known, [name for name in modules if name not in _SAME_NAME and name not in _PACKAGES and name != "torch"]


def read_imports(
    read: Callable[[str], bytes | None],
    names: Collection[str] | None,
    *,
    script: str | None = None,
    module: str | None = None,
    search: Sequence[str] = (),
) -> Imports | None:
    """Return the imports of ``script``, or of ``module`` run with ``-m``; ``None``: they cannot be found out.

    ``read`` returns the content of a file in the code folder. ``names`` are all files in it; None: not known, so that
    any module may be in it. ``search`` are further folders in it for modules (PYTHONPATH).
    """
    program = _Program(read, names)
    first = posixpath.dirname(posixpath.normpath(script)) if script else ""
    program.roots = [first, *(posixpath.normpath(place) for place in search)]
    program.roots = ["" if root == "." else root for root in program.roots]
    if script and names is not None and posixpath.normpath(script) not in names:
        fix = "take it out of .ddpctlignore and .gitignore, or correct `script:`"
        return Imports(faults=(SourceFault(script, 1, "is not in the code folder as it is sent", fix=fix),))
    try:
        if script:
            program.visit(posixpath.normpath(script), NEEDED, main=True, is_script=True)
        elif not program.run_module((module or "").split(".")):
            return None
    except RecursionError:
        return None
    return Imports(tuple(program.statements.values()), tuple(program.faults), program.certain, tuple(program.unread))


@dataclass
class _Program:
    """The files and imports that were read so far. ``seen``: file -> the guard under which the file was read."""

    read: Callable[[str], bytes | None]
    names: Collection[str] | None
    roots: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    statements: dict[str, Import] = field(default_factory=dict)
    faults: list[SourceFault] = field(default_factory=list)
    certain: bool = True
    unread: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folders = {folder for name in self.names or () for folder in _folders(name)}

    def run_module(self, parts: list[str]) -> bool:
        """Visit the files that ``python -m a.b`` runs: the packages above, then the module or its ``__main__``.

        Returns False if the module is not in the folder.
        """
        files = self._files(parts, "")
        package = f"{posixpath.join(*parts)}/__init__.py"
        main = f"{posixpath.join(*parts)}/__main__.py"
        if files and files[-1] == package and main in (self.names or ()):
            files.append(main)
        for file in files or ():
            self.visit(file, NEEDED, main=file == (files or [""])[-1])
        return bool(files)

    def visit(self, file: str, guard: str, *, main: bool = False, is_script: bool = False) -> None:
        """Record the imports of this file, and visit the files that it imports."""
        earlier = self.seen.get(file)
        if earlier is not None and GUARDS.index(earlier) <= GUARDS.index(guard):
            return
        self.seen[file] = guard
        text = self.read(file) if len(self.seen) <= MAX_FILES else None
        tree = self._parsed(file, text, guard) if text is not None else None
        if text is None or tree is None:
            if guard != OPTIONAL:
                self.unread[file] = None
            return
        self.certain = self.certain and not changes_path(text, tree)
        for node, own in imports_of(tree.body, guard, main):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._absolute(file, node.lineno, alias.name, (), own)
            elif not node.level:
                self._absolute(file, node.lineno, node.module or "", [alias.name for alias in node.names], own)
            elif is_script and own == NEEDED:
                fix = "run it as a module (`module:` instead of `script:`), or import by the full name"
                what, sure = "has a relative import, which fails in a script", b"__package__" not in text
                self.faults.append(SourceFault(file, node.lineno, what, certain=sure, fix=fix))
            elif not is_script:
                self._relative(file, node, own)

    def _parsed(self, file: str, text: bytes, guard: str) -> ast.Module | None:
        tree, fault = parse(file, text)
        if fault is not None and guard != OPTIONAL:
            self.faults.append(fault)
        return tree

    def _absolute(self, file: str, line: int, module: str, names: Sequence[str], guard: str) -> None:
        parts = module.split(".")
        for root in self._roots_of(parts):
            if self._follow(file, line, parts, names, root, guard):
                return
        if parts[0] in _EVERYWHERE:
            return
        text = f"from {module} import {', '.join(names)}" if names else f"import {module}"
        earlier = self.statements.get(text)
        if earlier is None or GUARDS.index(guard) < GUARDS.index(earlier.guard):
            self.statements[text] = Import(text, file, line, guard)

    def _relative(self, file: str, node: ast.ImportFrom, guard: str) -> None:
        root = posixpath.dirname(file)
        for _ in range(node.level - 1):
            root = posixpath.dirname(root)
        parts = node.module.split(".") if node.module else []
        followed = self._follow(file, node.lineno, parts, [alias.name for alias in node.names], root, guard)
        if parts and not followed and guard == NEEDED:
            self._lacks(file, node.lineno, posixpath.join(root, *parts).replace("/", "."))

    def _roots_of(self, parts: list[str]) -> list[str]:
        """Return the folders in which the module may be: any folder once the program has changed its search path."""
        if self.certain or self.names is None:
            return self.roots
        ends = (f"{parts[0]}.py", f"{parts[0]}/__init__.py")
        further = [name[: -len(end)].rstrip("/") for name in self.names for end in ends if name.endswith(f"/{end}")]
        return [*self.roots, *sorted(further)]

    def _follow(self, file: str, line: int, parts: list[str], names: Sequence[str], root: str, guard: str) -> bool:
        """Visit the files of the folder that this import runs; return False if the module is not in the folder."""
        found = self._files(parts, root) if parts else []
        submodules = [files for name in names if (files := self._files([*parts, name], root)) is not None]
        if found is None and not submodules:
            return False
        for imported in [*(found or ()), *(name for files in submodules for name in files)]:
            self.visit(imported, guard)
        if found and not self._is_whole(parts, root) and guard == NEEDED:
            self._lacks(file, line, ".".join(parts))
        return True

    def _lacks(self, file: str, line: int, module: str) -> None:
        what = f"imports {module}, which is not in the code folder as it is sent"
        fix = "add the file, or take it out of .ddpctlignore and .gitignore"
        self.faults.append(SourceFault(file, line, what, certain=False, fix=fix))

    def _files(self, parts: Sequence[str], root: str) -> list[str] | None:
        """Return the files that an import of this module runs; ``None``: the module is not in the folder.

        A folder without ``__init__.py`` counts only through files in it: an installed package of that name wins.
        """
        files: list[str] = []
        place, names = root, self.names or ()
        for part in parts:
            place = posixpath.join(place, part)
            if f"{place}/__init__.py" in names:
                files.append(f"{place}/__init__.py")
            elif f"{place}.py" in names:
                return [*files, f"{place}.py"]
            elif self._is_compiled(place):
                return files
            elif place not in self.folders:
                return files or None
        return files or None

    def _is_whole(self, parts: Sequence[str], root: str) -> bool:
        """Return whether the last part is there too, and not only the packages above it."""
        place = posixpath.join(root, *parts)
        names = self.names or ()
        above = (posixpath.join(root, *parts[: number + 1]) for number in range(len(parts)))
        if any(f"{parent}.py" in names and f"{parent}/__init__.py" not in names for parent in above):
            return True  # a module may make names below itself
        return place in self.folders or self._is_compiled(place)

    def _is_compiled(self, place: str) -> bool:
        """Return whether there is an extension module, or the source of an extension that the node builds."""
        starts = tuple(f"{place}.{end}" for end in ("so", "pyx", "cpython-", "abi3."))
        return any(name.startswith(starts) for name in self.names or ())


def _folders(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name
