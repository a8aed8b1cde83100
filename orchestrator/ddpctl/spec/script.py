"""Reads from the text of a training script how it must be launched, and its backend.

A process gets its local rank from ``--local_rank=N``, ``--local-rank=N`` or ``LOCAL_RANK``. A script that gets an
option that it does not parse dies at once. A script that misses its own option stays on GPU 0. The text is parsed as
Python, so a mention in a comment or a docstring does not count. A text that cannot be parsed is searched instead.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddpctl.spec.backend import Backend, find_backend
from ddpctl.spec.source import last_name
from ddpctl.spec.spawning import asks_place, find_loopback, find_spawning, is_join

UNDERSCORE = "--local_rank"
DASH = "--local-rank"

# Calls that declare an option: argparse and configargparse, click and typer, absl.
_DECLARES = frozenset({"add_argument", "add_option", "option", "Option", "DEFINE_integer", "DEFINE_string"})
_FALLBACK = re.compile(
    r"""^[^#\n]*\b(?:add_argument|option|Option)\s*\(\s*(?:["'][^"'\n]*["']\s*,\s*)*["'](--local[_-]rank)["']""", re.M
)
_FALLBACK_ENV = re.compile(r"""^[^#\n]*\benv\w*\b[^#\n]*["']LOCAL_RANK["']""", re.M)
_FALLBACK_INIT = re.compile(r"^[^#\n]*\binit_process_group\b", re.M)


# How a job's processes begin:
# - RANKS: torch's launcher starts each rank.
# - NODE: the script starts the ranks itself. It is started once on each host, with the number of the host in RANK.
# - ALONE: as NODE, but without the number of the host, because the script does not read it.
Start = Literal["ranks", "node", "alone"]
RANKS, NODE, ALONE = "ranks", "node", "alone"


@dataclass(frozen=True)
class Spawning:
    """The place where a script starts its own processes, and the ``call`` that does so.

    ``loopback``: the loopback address at which the processes meet; ``None``: the script names no such address.
    """

    line: int
    call: str
    loopback: str | None = None
    file: str = "the script"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ScriptFacts:
    """The facts about a script.

    - ``local_rank_arg``: the option that the script parses, "--local_rank" or "--local-rank"; ``None``: neither.
    - ``reads_local_rank``: the script reads LOCAL_RANK from the environment.
    - ``asks_place``: the script reads the number of its host from the environment.
    - ``joins``: the script calls init_process_group.
    - ``initialises``: the script does so, or uses a library that does (accelerate, lightning, deepspeed ...).
    - ``spawning``: where the script starts processes that join the process group.
    - ``backend``: the backend, where it is certain.
    - ``parsed``: the text is valid Python for this interpreter.
    """

    local_rank_arg: str | None = None
    reads_local_rank: bool = False
    asks_place: bool = False
    initialises: bool = False
    joins: bool = False
    spawning: Spawning | None = None
    backend: Backend | None = None
    parsed: bool = True

    @property
    def start(self) -> Start:
        """Return how the processes of the script begin.

        A script that takes a local rank can be started in both ways, and torch's launcher is the better way. The
        launcher also starts a script that was not seen to join a process group.
        """
        if self.spawning is None or not self.joins or self.reads_local_rank or self.local_rank_arg:
            return "ranks"
        return "node" if self.asks_place else "alone"

    def named(self, file: str) -> ScriptFacts:
        """Return the facts with ``file`` as the place in which they were found."""
        spawning = replace(self.spawning, file=file) if self.spawning is not None else None
        return replace(self, spawning=spawning, backend=replace(self.backend, file=file) if self.backend else None)

    def with_modules(self, helpers: Sequence[ScriptFacts]) -> ScriptFacts:
        """Return the facts combined with the facts about the modules of the code folder that the script imports."""
        files = (self, *helpers)
        spawning = [file.spawning for file in files if file.spawning is not None]
        backends = [file.backend for file in files if file.joins]
        names = {backend.name if backend is not None else None for backend in backends}
        return replace(
            self,
            initialises=any(file.initialises for file in files),
            joins=any(file.joins for file in files),
            reads_local_rank=any(file.reads_local_rank or file.local_rank_arg for file in files),
            asks_place=any(file.asks_place for file in files),
            spawning=spawning[0] if spawning else None,
            backend=backends[0] if len(names) == 1 else None,
        )


_LIBRARIES = frozenset(
    {
        "accelerate",
        "composer",
        "deepspeed",
        "fairseq",
        "horovod",
        "ignite",
        "lightning",
        "pytorch_lightning",
        "transformers",
    }
)


def read_script(text: str) -> ScriptFacts:
    """Return the facts about a script. Never raises: the text need not be Python."""
    tree = _tree(text)
    if tree is None:
        return _search(text)
    declares = _DECLARES | _aliases(tree)
    nodes = list(ast.walk(tree))
    read = {name for node in nodes for name in _variables_read(node)}
    return ScriptFacts(
        local_rank_arg=_choose({style for node in nodes for style in _styles(node, declares)}),
        reads_local_rank="LOCAL_RANK" in read,
        asks_place=asks_place(read),
        initialises=any(_initialises(node) for node in nodes),
        joins=any(is_join(node) for node in nodes),
        spawning=_spawning(tree),
        backend=find_backend(tree),
    )


def _spawning(tree: ast.Module) -> Spawning | None:
    call = find_spawning(tree)
    return None if call is None else Spawning(call.lineno, last_name(call.func), find_loopback(tree))


def _choose(styles: set[str]) -> str | None:
    """Choose between both spellings. A script that declares both accepts the older spelling, ``--local_rank``, too."""
    return UNDERSCORE if UNDERSCORE in styles else DASH if DASH in styles else None


def _aliases(tree: ast.AST) -> frozenset[str]:
    """Return the names that the script gives to a call in _DECLARES: ``add = parser.add_argument``."""
    return frozenset(
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in _DECLARES
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _styles(node: ast.AST, declares: frozenset[str]) -> Iterator[str]:
    """Yield the spellings of the local rank that this node declares as options."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in declares:
        return
    absl = last_name(node.func).startswith("DEFINE_")
    for word in _strings(node.args):
        if absl and word in ("local_rank", "local-rank"):
            yield f"--{word}"
        elif word.split("/")[0] in (UNDERSCORE, DASH):  # click: "--flag/--no-flag"
            yield word.split("/")[0]


def _strings(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Starred) and isinstance(node.value, (ast.List, ast.Tuple)):
            yield from _strings(node.value.elts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_environ(node: ast.expr) -> bool:
    return last_name(node) in ("environ", "environb", "env")


def _variables_read(node: ast.AST) -> Iterator[str]:
    """Yield NAME from ``os.environ["NAME"]``, ``os.environ.get("NAME")``, ``"NAME" in os.environ``, and ``getenv``."""
    names: list[ast.expr] = []
    if isinstance(node, ast.Subscript) and _is_environ(node.value) and isinstance(node.ctx, ast.Load):
        names = [node.slice]
    elif isinstance(node, ast.Compare) and any(_is_environ(item) for item in node.comparators):
        names = [node.left]
    elif isinstance(node, ast.Call) and node.args:
        function = node.func
        method = isinstance(function, ast.Attribute) and function.attr in ("get", "pop", "setdefault")
        if last_name(function) == "getenv" or (method and _is_environ(function.value)):  # type: ignore[attr-defined]
            names = node.args[:1]
    for name in names:
        if isinstance(name, ast.Constant) and isinstance(name.value, (str, bytes)):
            yield name.value if isinstance(name.value, str) else name.value.decode("ascii", "replace")


def _initialises(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return is_join(node)
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in _LIBRARIES for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in _LIBRARIES


def _search(text: str) -> ScriptFacts:
    """Search a text that this interpreter cannot parse: an older or newer dialect of Python, or a shell script."""
    return ScriptFacts(
        local_rank_arg=_choose(set(_FALLBACK.findall(text))),
        reads_local_rank=_FALLBACK_ENV.search(text) is not None,
        initialises=_FALLBACK_INIT.search(text) is not None,
        parsed=False,
    )


_FALLBACK_IMPORT = re.compile(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", re.M)


def imported_modules(text: str) -> frozenset[str]:
    """Return the top-level modules that a Python text imports anywhere."""
    tree = _tree(text)
    if tree is None:
        return frozenset(_FALLBACK_IMPORT.findall(text))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return frozenset(name.split(".")[0] for name in names)


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a user's script may have invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
