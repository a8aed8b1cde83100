"""A test that only `make test-all` runs has a cheaper test in `make test` that fails for the same fault."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_full_test_names_a_test_of_make_test() -> None:
    marking = [path for path in TESTS.rglob("test_*.py") if "mark.full" in path.read_text()]
    wrong = [
        f"{path.relative_to(TESTS.parent)}:{mark.lineno}: {problem}"
        for path in marking
        for mark in full_marks(read_module(path))
        if (problem := find_problem(mark))
    ]
    assert not wrong, "\n".join(wrong)


@functools.cache
def read_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def full_marks(tree: ast.AST) -> Iterator[ast.Call | ast.Attribute]:
    """Every `pytest.mark.full`, with or without its arguments."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "full" and ast.unparse(node.value) == "pytest.mark":
            yield called.get(id(node), node)


def find_problem(mark: ast.Call | ast.Attribute) -> str | None:
    keywords = {word.arg: word.value for word in mark.keywords} if isinstance(mark, ast.Call) else {}
    match keywords.get("covered_by"):
        case ast.Constant(value=str(name)):
            file, _, function = name.partition("::")
            if not (path := TESTS.parent / file).is_file():
                return f"there is no file {file}"
            return find_problem_of_cover(read_module(path), name, function)
    return "full(covered_by=...) names no test"


def find_problem_of_cover(module: ast.Module, name: str, function: str) -> str | None:
    """``function`` is the part of ``name`` behind the file."""
    found = next((node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function), None)
    if found is None or not function.startswith("test_"):
        return f"there is no test {name}"
    whole_module = [node for node in module.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    # A mark inside of `pytest.param(...)` leaves the other values of the test in `make test`.
    decorators = [node for node in found.decorator_list if "parametrize" not in ast.unparse(node)]
    if any(list(full_marks(node)) for node in [*whole_module, *decorators]):
        return f"{name} is itself only in `make test-all`"
    return None
