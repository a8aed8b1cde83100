"""What a training script says about how it wants to be launched, read from its text alone.

A launcher can tell a process its local rank as ``--local_rank=N``, as ``--local-rank=N`` or in ``LOCAL_RANK``; a script
that gets an option it does not parse dies at once, one that misses its own stays on GPU 0. Python's own parser reads
the script, so that a mention in a comment or a docstring does not count; a text it cannot parse is searched instead.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from ddpctl.spec.source import last_name

UNDERSCORE = "--local_rank"
DASH = "--local-rank"

# Calls that declare an option: argparse and configargparse, click and typer, absl.
_DECLARES = frozenset({"add_argument", "add_option", "option", "Option", "DEFINE_integer", "DEFINE_string"})
_FALLBACK = re.compile(
    r"""^[^#\n]*\b(?:add_argument|option|Option)\s*\(\s*(?:["'][^"'\n]*["']\s*,\s*)*["'](--local[_-]rank)["']""", re.M
)
_FALLBACK_ENV = re.compile(r"""^[^#\n]*\benv\w*\b[^#\n]*["']LOCAL_RANK["']""", re.M)
_FALLBACK_INIT = re.compile(r"^[^#\n]*\binit_process_group\b", re.M)


@dataclass(frozen=True)
class ScriptFacts:
    """What was found.

    ``local_rank_arg``: the option the script parses ("--local_rank", "--local-rank") or None. ``reads_local_rank``: it
    reads LOCAL_RANK from the environment. ``initialises``: it calls init_process_group, or hands that to a library that
    does (accelerate, lightning, deepspeed, transformers, ignite, composer). ``parsed``: it is valid Python for us.
    """

    local_rank_arg: str | None = None
    reads_local_rank: bool = False
    initialises: bool = False
    parsed: bool = True


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
    """The facts of a script; never raises, whatever the text is."""
    tree = _tree(text)
    if tree is None:
        return _search(text)
    declares = _DECLARES | _aliases(tree)
    styles = {style for node in ast.walk(tree) for style in _styles(node, declares)}
    return ScriptFacts(
        local_rank_arg=_choose(styles),
        reads_local_rank=any(_reads_local_rank(node) for node in ast.walk(tree)),
        initialises=any(_initialises(node) for node in ast.walk(tree)),
    )


def _choose(styles: set[str]) -> str | None:
    """One of both spellings: where a script declares both, either works and the older one is known to more of them."""
    return UNDERSCORE if UNDERSCORE in styles else DASH if DASH in styles else None


def _aliases(tree: ast.AST) -> frozenset[str]:
    """Other names that the script gives to such a call: ``add = parser.add_argument``."""
    return frozenset(
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in _DECLARES
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _styles(node: ast.AST, declares: frozenset[str]) -> Iterator[str]:
    """The spellings that this node declares as options."""
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


def _reads_local_rank(node: ast.AST) -> bool:
    """``os.environ["LOCAL_RANK"]``, with ``.get()`` or ``in`` as well, or ``os.getenv("LOCAL_RANK")``."""
    if isinstance(node, ast.Subscript):
        return _is_environ(node.value) and _is_local_rank(node.slice)
    if isinstance(node, ast.Compare):
        return _is_local_rank(node.left) and any(_is_environ(item) for item in node.comparators)
    if isinstance(node, ast.Call) and node.args and _is_local_rank(node.args[0]):
        function = node.func
        method = isinstance(function, ast.Attribute) and function.attr in ("get", "pop", "setdefault")
        return last_name(function) == "getenv" or (method and _is_environ(function.value))  # type: ignore[attr-defined]
    return False


def _is_local_rank(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("LOCAL_RANK", b"LOCAL_RANK")


def _initialises(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("init_process_group", "init_device_mesh", "init_distributed")
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in _LIBRARIES for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in _LIBRARIES


def _search(text: str) -> ScriptFacts:
    """The same from a text that is not Python for this interpreter: an older dialect, a newer one, a shell script."""
    return ScriptFacts(
        local_rank_arg=_choose(set(_FALLBACK.findall(text))),
        reads_local_rank=_FALLBACK_ENV.search(text) is not None,
        initialises=_FALLBACK_INIT.search(text) is not None,
        parsed=False,
    )


_FALLBACK_IMPORT = re.compile(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", re.M)


def imported_modules(text: str) -> frozenset[str]:
    """The top-level modules that a Python text imports anywhere in it."""
    tree = _tree(text)
    if tree is None:
        return frozenset(_FALLBACK_IMPORT.findall(text))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return frozenset(name.split(".")[0] for name in names)


def _tree(text: str) -> ast.Module | None:
    """The text as Python reads it; None when it is not valid for this Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's script are not our concern
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
