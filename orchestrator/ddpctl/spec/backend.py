"""Reads the backend of a script's process group from its tree, where it is certain.

Certain are a text in the call, a constant of the script, and the default of a function's argument or of an option.
A choice at run time is not certain: ``"nccl" if torch.cuda.is_available() else "gloo"``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpctl.spec.limits import BACKEND_STEPS
from ddpctl.spec.source import dotted_name, last_name, mentioned_names

OPTIONS = ("--backend", "--dist-backend")  # the usual names in scripts
_KNOWN = ("nccl", "gloo")


@dataclass(frozen=True)
class Backend:
    """The backend in a script: ``name`` is nccl or gloo. ``options``: the command-line options that override it."""

    name: str
    line: int
    options: tuple[str, ...] = ()
    file: str = "the script"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def find_backend(tree: ast.Module) -> Backend | None:
    """Return the backend of all calls of ``init_process_group`` in the file.

    ``None``: they differ, or it is uncertain.
    """
    reader = _Reader(tree)
    backends = {reader.backend_of(call) for call in reader.calls("init_process_group")}
    names = {backend.name if backend is not None else None for backend in backends}
    if len(names) != 1 or None in names:
        return None
    return min((backend for backend in backends if backend is not None), key=lambda backend: backend.line)


def backend_in(args: Sequence[str], options: Sequence[str] = OPTIONS) -> str | None:
    """Return the value of any of these ``options`` in the arguments of a script; ``None``: it is not given."""
    found = None
    wanted = {_spelled(option) for option in options}
    for index, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name.startswith("-") and _spelled(name) in wanted:
            found = value if equals else args[index + 1] if index + 1 < len(args) else ""
    return found


def backend_of(args: Sequence[str], script: Backend | None = None) -> str | None:
    """Return the backend of a job from the ``args`` of its script, else from the script itself; ``None``: uncertain."""
    given = backend_in(args, (*OPTIONS, *(script.options if script is not None else ())))
    if given is not None:
        return given if given in _KNOWN else None
    return script.name if script is not None else None


def _spelled(option: str) -> str:
    return option.replace("_", "-")


class _Reader:
    """Follows values through the tree of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}

    def calls(self, name: str) -> Iterator[ast.Call]:
        for node in self._nodes:
            if isinstance(node, ast.Call) and last_name(node.func) == name:
                yield node

    def backend_of(self, call: ast.Call) -> Backend | None:
        given = [word.value for word in call.keywords if word.arg == "backend"] or call.args[:1]
        value = given[0] if given else None
        if value is None or isinstance(value, ast.Starred) or self._is_guarded(call):
            return None
        return self._read(value, call, BACKEND_STEPS)

    def _read(self, value: ast.expr, place: ast.AST, steps: int) -> Backend | None:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            name = value.value.lower()
            return Backend(name, value.lineno) if name in _KNOWN else None
        if steps == 0:
            return None
        if isinstance(value, ast.Name):
            return self._read_name(value.id, place, steps - 1)
        if isinstance(value, ast.Attribute):
            if dotted_name(value).endswith(("Backend.NCCL", "Backend.GLOO")):
                return Backend(value.attr.lower(), value.lineno)
            return self._read_option(value, place, steps - 1)
        return None

    def _read_name(self, name: str, place: ast.AST, steps: int) -> Backend | None:
        """Read a name: an argument of the function around ``place``, or a variable that is assigned exactly once."""
        function = self._function(place)
        if function is not None and name in _argument_names(function):
            return self._read_argument(name, function, place, steps)
        values = list(self._assigned(name))
        if len(values) != 1 or values[0] is None or self._is_guarded(values[0]):
            return None
        return self._read(values[0], values[0], steps)

    def _assigned(self, name: str) -> Iterator[ast.expr | None]:
        """Yield the values that are assigned to the name in this file; ``None`` for a value that cannot be read."""
        for node in self._nodes:
            if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
                parent = self._parents[node]
                plain = isinstance(parent, (ast.Assign, ast.AnnAssign)) and isinstance(node.ctx, ast.Store)
                yield parent.value if plain else None  # type: ignore[attr-defined]

    def _read_argument(self, name: str, function: ast.FunctionDef, place: ast.AST, steps: int) -> Backend | None:
        """Read an argument of a function from all calls of the function, and from its default.

        The function may also be passed to another call, as with ``spawn(main, args)``. Its default then counts, unless
        that call mentions a backend, which may be the argument.
        """
        if list(self._assigned(name)):
            return None
        found: list[Backend | None] = []
        position = _argument_names(function).index(name)
        default = _default(function, name)
        for node in self._nodes:
            if isinstance(node, ast.Call) and last_name(node.func) == function.name:
                given = _given(node, name, position)
                value = default if given is None else given
                found.append(self._read(value, node, steps) if value is not None else None)
            elif isinstance(node, ast.Call) and function.name in map(last_name, _all_arguments(node)):
                texts = {child.value for child in ast.walk(node) if isinstance(child, ast.Constant)}
                unsure = default is None or any(str(text).lower() in _KNOWN for text in texts)
                found.append(None if unsure or default is None else self._read(default, function, steps))
        if not found and default is not None:
            found = [self._read(default, function, steps)]
        return found[0] if found and len({backend.name if backend else None for backend in found}) == 1 else None

    def _read_option(self, value: ast.Attribute, place: ast.AST, steps: int) -> Backend | None:
        """Read ``args.backend`` from the default of the only option of that name."""
        stored = [n.attr for n in self._nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
        if value.attr in stored:
            return None
        found = [(call, texts) for call, texts in self._options() if value.attr == _destination(call, texts)]
        if len(found) != 1:
            return None
        call, texts = found[0]
        default = next((word.value for word in call.keywords if word.arg == "default"), None)
        read = self._read(default, call, steps) if default is not None else None
        return None if read is None else Backend(read.name, read.line, texts)

    def _options(self) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
        for call in self.calls("add_argument"):
            words = (arg.value for arg in call.args if isinstance(arg, ast.Constant))
            yield call, tuple(word for word in words if isinstance(word, str) and word.startswith("-"))

    def _function(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _is_guarded(self, node: ast.AST) -> bool:
        """Return whether the node runs only under a condition about GPUs, or may be replaced by another value."""
        while node in self._parents:
            child, node = node, self._parents[node]
            if isinstance(node, (ast.If, ast.IfExp)) and child is not node.test and _asks_for_gpus(node.test):
                return True
            if isinstance(node, ast.BoolOp) or (isinstance(node, ast.Try) and node.handlers):
                return True
        return False


def _asks_for_gpus(test: ast.expr) -> bool:
    names = " ".join(mentioned_names(test)).lower()
    return any(word in names for word in ("cuda", "gpu", "is_available", "device", "nccl", "gloo"))


def _argument_names(function: ast.FunctionDef) -> list[str]:
    args = function.args
    return [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def _default(function: ast.FunctionDef, name: str) -> ast.expr | None:
    args = function.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    pairs = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
    keyword = {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return pairs.get(name) or keyword.get(name)


def _given(call: ast.Call, name: str, position: int) -> ast.expr | None:
    words = [word.value for word in call.keywords if word.arg == name]
    return words[0] if words else call.args[position] if position < len(call.args) else None


def _all_arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _destination(call: ast.Call, texts: Sequence[str]) -> str | None:
    """Return the attribute in which argparse stores an option."""
    dest = [word.value.value for word in call.keywords if word.arg == "dest" and isinstance(word.value, ast.Constant)]
    if dest:
        return str(dest[0])
    long = [text for text in texts if text.startswith("--")] or list(texts)
    return long[0].lstrip("-").replace("-", "_") if long else None
