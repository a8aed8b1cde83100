"""Reads a Python file without running it: the Python versions that accept it, and the imports that it runs."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The guard of an import:
# - NEEDED: a failure of the import ends the program.
# - IF_THERE: the program handles a missing module.
# - IF_IMPORTABLE: the program handles any ImportError.
# - OPTIONAL: the program handles any failure, or the import may not run.
NEEDED, IF_THERE, IF_IMPORTABLE, OPTIONAL = "", "missing", "import", "optional"
GUARDS = (NEEDED, IF_THERE, IF_IMPORTABLE, OPTIONAL)

OLDEST = (3, 8)  # the oldest Python that the worker runs on
_PATHS = ("path", "meta_path", "path_hooks", "addsitedir")
_PATH = re.compile(rb"\b(sys|site)\b")  # most files have neither word, and a search of the text is cheaper than a walk


@dataclass(frozen=True)
class SourceFault:
    """The reason why a file of the program cannot be run.

    ``below``: versions of Python below this version refuse the file (None: all versions). ``newer_unknown``: it is not
    known whether newer versions accept it. ``certain``: False if the program may still make it work.
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
    """Parse a file with this Python: return its tree, or the fault.

    A file that only an older Python refuses gives both. Neither: the file is too deeply nested to be parsed.
    """
    here = sys.version_info[:2]
    fault = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a user's script may have invalid escapes
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
    """Return the fault that names the Python version which the file needs; ``None``: the parser accepts it with any."""
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
    """Yield every import in these statements with its guard, in their order."""
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
            inner = (child for child in ast.walk(node) if isinstance(child, (ast.Import, ast.ImportFrom)))
            yield from ((child, OPTIONAL) for child in inner)


def _weaker(guard: str, other: str | None) -> str:
    return max(guard, other or NEEDED, key=GUARDS.index)


def _branches(test: ast.expr, main: bool) -> tuple[str | None, str | None]:
    """Return the guards of both branches of an ``if``; ``None``: the branch never runs."""
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
    """Return the guard that these handlers give an import. A handler that ends the program itself is no guard."""
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
    """Return the guard of a ``with contextlib.suppress(ImportError):``."""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    kinds = [_kind(arg) for call in calls if last_name(call.func) == "suppress" for arg in call.args]
    return max(kinds, key=GUARDS.index, default=NEEDED)


def last_name(node: ast.expr) -> str:
    """Return the last name of ``a.b.name``; an empty text for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def dotted_name(node: ast.expr) -> str:
    """Return ``a.b.name`` as it is written; an empty text if it does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def mentioned_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of all variables and attributes below the node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


def changes_path(text: bytes, tree: ast.Module) -> bool:
    """Return whether the program may change its search path for modules: it uses ``sys.path`` or its like."""
    return _PATH.search(text) is not None and any(map(_is_path, ast.walk(tree)))


def _is_path(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in _PATHS for alias in node.names) and node.module in ("sys", "site")
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr in _PATHS and last_name(node.value) in ("sys", "site")
