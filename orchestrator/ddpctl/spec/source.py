"""One Python file, read and not run: whether a Python takes it, and what it imports when it runs."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What a failure of the import does to the program: it ends it; or it is caught where the module is missing, or where
# any ImportError is raised; or the import need not run at all.
NEEDED, IF_THERE, IF_IMPORTABLE, OPTIONAL = "", "missing", "import", "optional"
GUARDS = (NEEDED, IF_THERE, IF_IMPORTABLE, OPTIONAL)

OLDEST = (3, 8)  # the worker's own
_PATHS = ("path", "meta_path", "path_hooks", "addsitedir")
_PATH = re.compile(rb"\b(sys|site)\b")  # most files have neither: a look at their text is cheaper than one at the tree


@dataclass(frozen=True)
class SourceFault:
    """Why a file of the program cannot be run.

    ``below``: Pythons below this one refuse it (None: all); ``newer_unknown``: whether later ones take it was not seen.
    ``certain`` is False where the program could still make it work.
    """

    file: str
    line: int
    message: str
    below: tuple[int, int] | None = None
    newer_unknown: bool = False
    certain: bool = True
    fix: str | None = None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


def parse(file: str, text: bytes) -> tuple[ast.Module | None, SourceFault | None]:
    """The file as this Python reads it, or why it does not; a fault too where an older Python would refuse it."""
    here = sys.version_info[:2]
    fault = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's script are not our concern
            try:
                tree = ast.parse(text, feature_version=OLDEST)
            except SyntaxError:
                tree = ast.parse(text)
                fault = _too_new(file, text)
            compile(tree, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        newer = (here[0], here[1] + 1)
        message = f"is no valid Python {here[0]}.{here[1]}: {error.msg}"
        return None, SourceFault(file, error.lineno or 1, message, below=newer, newer_unknown=True)
    except ValueError as error:  # a null byte
        return None, SourceFault(file, 1, f"is no valid Python: {error}")
    except (RecursionError, MemoryError):
        return None, None
    return tree, fault


def _too_new(file: str, text: bytes) -> SourceFault | None:
    """Which Python it needs, as far as the parser knows versions apart."""
    fault = None
    for minor in range(OLDEST[1], sys.version_info[1]):
        try:
            ast.parse(text, feature_version=(3, minor))
        except SyntaxError as error:
            fault = SourceFault(file, error.lineno or 1, f"needs Python 3.{minor + 1} or newer", below=(3, minor + 1))
        else:
            return fault
    return fault


def imports_of(body: Sequence[ast.stmt], guard: str, main: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import of these statements with what guards it, in their order."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, guard
        elif isinstance(node, ast.If):
            then, other = _branches(node.test, main)
            yield from imports_of(node.body, _weaker(guard, then), main) if then is not None else ()
            yield from imports_of(node.orelse, _weaker(guard, other), main) if other is not None else ()
        elif isinstance(node, ast.Try):
            caught = _caught(node.handlers)
            yield from imports_of(node.body, _weaker(guard, caught), main)
            for handler in node.handlers:
                yield from imports_of(handler.body, OPTIONAL, main)
            yield from imports_of(node.orelse, _weaker(guard, OPTIONAL if caught else NEEDED), main)
            yield from imports_of(node.finalbody, guard, main)
        elif isinstance(node, ast.With):
            yield from imports_of(node.body, _weaker(guard, _suppressed(node)), main)
        elif isinstance(node, ast.ClassDef):
            yield from imports_of(node.body, guard, main)
        else:  # a function, a loop, a match: it may not run
            inner = (one for one in ast.walk(node) if isinstance(one, (ast.Import, ast.ImportFrom)))
            yield from ((one, OPTIONAL) for one in inner)


def _weaker(one: str, other: str | None) -> str:
    return max(one, other or NEEDED, key=GUARDS.index)


def _branches(test: ast.expr, main: bool) -> tuple[str | None, str | None]:
    """How surely each branch of an ``if`` runs; None: never."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        then, other = _branches(test.operand, main)
        return other, then
    if last_name(test) == "TYPE_CHECKING" or (isinstance(test, ast.Constant) and not test.value):
        return None, NEEDED
    if isinstance(test, ast.Constant):
        return NEEDED, None
    if ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__"):
        return (NEEDED, None) if main else (None, NEEDED)
    return OPTIONAL, OPTIONAL


def _caught(handlers: Sequence[ast.ExceptHandler]) -> str:
    """Which failures of an import these handlers survive; one that ends the program itself survives none."""
    kinds = [_kind(handler.type) for handler in handlers if not any(map(_gives_up, handler.body))]
    return max(kinds, key=GUARDS.index, default=NEEDED)


def _kind(expected: ast.expr | None) -> str:
    if isinstance(expected, ast.Tuple):
        return max(map(_kind, expected.elts), key=GUARDS.index, default=NEEDED)
    name = last_name(expected) if expected is not None else ""
    return {"ModuleNotFoundError": IF_THERE, "ImportError": IF_IMPORTABLE}.get(name, OPTIONAL)


def _gives_up(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise):
        return True
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return called is not None and last_name(called) in ("exit", "_exit", "quit")


def _suppressed(node: ast.With) -> str:
    """``with contextlib.suppress(ImportError):``"""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    kinds = [_kind(arg) for call in calls if last_name(call.func) == "suppress" for arg in call.args]
    return max(kinds, key=GUARDS.index, default=NEEDED)


def last_name(node: ast.expr) -> str:
    """The last name of ``a.b.name``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def dotted_name(node: ast.expr) -> str:
    """``a.b.name`` as it is written; empty where it begins with anything but a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def mentioned_names(node: ast.AST) -> Iterator[str]:
    """Every name below the node: of variables, and of attributes."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


def changes_path(text: bytes, tree: ast.Module) -> bool:
    """Whether the program may look for modules elsewhere: it touches ``sys.path``, or adds a folder like it."""
    return _PATH.search(text) is not None and any(map(_is_path, ast.walk(tree)))


def _is_path(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in _PATHS for alias in node.names) and node.module in ("sys", "site")
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr in _PATHS and last_name(node.value) in ("sys", "site")
