"""Finds out whether a script starts the processes of its training by itself, for example with ``mp.spawn``.

Such a script is started once on each host, without torch's launcher. Under the launcher its processes would inherit the
variables of a rank, and wait for ever for a store that does not exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from ddpctl.spec.source import dotted_name, last_name, mentioned_names

JOINS = frozenset({"init_process_group", "init_device_mesh", "init_distributed"})
# Variables that only a script for several hosts reads.
PLACES = frozenset({"RANK", "NODE_RANK", "GROUP_RANK", "DDPCTL_HOST", "DDPCTL_HOSTS"})
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SPAWNS = frozenset({"spawn", "start_processes"})
_MODULES = ("torch.multiprocessing", "multiprocessing", "torch.multiprocessing.spawn")


def find_spawning(tree: ast.Module) -> ast.Call | None:
    """Return the call that starts the processes of the training; ``None``: the script has no such call.

    - ``mp.spawn`` counts if its function joins the process group, or may do so: the function is not defined in this
      file, or no code in this file joins.
    - ``Process`` counts only if its target joins in this file, as it has many other uses.
    """
    modules, functions = _multiprocessing(tree)
    definitions = _definitions(tree)
    joins_here = any(is_join(node) for node in ast.walk(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        spawns = _is_spawn(call, modules, functions)
        if not spawns and last_name(call.func) != "Process":
            continue
        joins = any(is_join(node) for body in _reached(call, definitions) for node in ast.walk(body))
        unknown = not joins_here or (call.args and last_name(call.args[0]) not in definitions)
        if joins or (spawns and unknown):
            return call
    return None


def is_join(node: ast.AST) -> bool:
    """Return whether the node is a call that joins the process group."""
    return isinstance(node, ast.Call) and last_name(node.func) in JOINS


def asks_place(names: Iterable[str]) -> bool:
    """Return whether a script that reads these variables asks for the number of its host."""
    return not PLACES.isdisjoint(names)


def find_loopback(tree: ast.Module) -> str | None:
    """Return the loopback address that the script writes into MASTER_ADDR or ``init_method``.

    ``None``: no such address.
    """
    for node in ast.walk(tree):
        for value in _addresses(node):
            text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
            for own in LOOPBACK:
                if text == own or f"//{own}:" in text or f"//[{own}]:" in text:
                    return own
    return None


def _addresses(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in ``node`` that set the address at which the processes meet."""
    if isinstance(node, ast.Assign) and any(_names_master(target) for target in node.targets):
        yield node.value
    elif is_join(node) and isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg == "init_method")
    elif _sets_master(node):
        yield node.args[1]  # type: ignore[attr-defined]


def _sets_master(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or last_name(node.func) not in ("setdefault", "putenv"):
        return False
    return len(node.args) == 2 and _is_master(node.args[0])


def _names_master(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and _is_master(target.slice)


def _is_master(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "MASTER_ADDR"


def _multiprocessing(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names of the module multiprocessing in this file, and the names of its functions in _SPAWNS."""
    modules, functions = set(_MODULES), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name in _MODULES and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            modules |= {alias.asname or alias.name for alias in node.names if alias.name == "multiprocessing"}
        elif isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            functions |= {alias.asname or alias.name for alias in node.names if alias.name in _SPAWNS}
    return modules, functions


def _is_spawn(call: ast.Call, modules: set[str], functions: set[str]) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in _SPAWNS and dotted_name(call.func.value) in modules
    return last_name(call.func) in functions


def _definitions(tree: ast.Module) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
    return found


def _reached(call: ast.Call, definitions: Mapping[str, list[ast.AST]]) -> list[ast.AST]:
    """Return the code of this file that the started process may run: the call's arguments, and all that they mention.

    A function counts if an argument mentions its name, or if another counted function does.
    """
    todo: list[ast.AST] = [*call.args, *(word.value for word in call.keywords)]
    reached = list(todo)
    seen: set[str] = set()
    while todo:
        for name in {*mentioned_names(todo.pop())} - seen:
            seen.add(name)
            todo += definitions.get(name, ())
            reached += definitions.get(name, ())
    return reached
