"""The backend that a script names for its process group, read from its tree; where that is not certain, none.

Certain is a text in the call, a constant of the script, the default of an argument of a function, or that of an option.
A choice that the script makes by itself, ``"nccl" if torch.cuda.is_available() else "gloo"``, is not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpctl.spec.limits import BACKEND_STEPS
from ddpctl.spec.source import dotted_name, last_name, mentioned_names

OPTIONS = ("--backend", "--dist-backend")  # as nearly all scripts call it
_KNOWN = ("nccl", "gloo")


@dataclass(frozen=True)
class Backend:
    """``name`` as the script says it, nccl or gloo; ``options``: of the command line, which say something else."""

    name: str
    line: int
    options: tuple[str, ...] = ()
    file: str = "the script"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def find_backend(tree: ast.Module) -> Backend | None:
    """The backend of all calls of ``init_process_group`` in the file; None where they differ or it is not certain."""
    reader = _Reader(tree)
    found = {reader.backend_of(call) for call in reader.calls("init_process_group")}
    names = {one.name if one is not None else None for one in found}
    if len(names) != 1 or None in names:
        return None
    return min((one for one in found if one is not None), key=lambda one: one.line)


def backend_in(args: Sequence[str], options: Sequence[str] = OPTIONS) -> str | None:
    """What the arguments of a script say for one of these ``options``; None: nothing."""
    found = None
    wanted = {_spelled(option) for option in options}
    for index, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name.startswith("-") and _spelled(name) in wanted:
            found = value if equals else args[index + 1] if index + 1 < len(args) else ""
    return found


def backend_of(args: Sequence[str], script: Backend | None = None) -> str | None:
    """The backend of a job: by the ``args`` of its script, else by its script. None: it chooses by itself."""
    told = backend_in(args, (*OPTIONS, *(script.options if script is not None else ())))
    if told is not None:
        return told if told in _KNOWN else None
    return script.name if script is not None else None


def _spelled(option: str) -> str:
    return option.replace("_", "-")


class _Reader:
    """One file. A node's ``guards`` are the conditions below which it stands."""

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
        """By the only assignment to the name, or as the argument of the function around ``place``."""
        function = self._function(place)
        if function is not None and name in _argument_names(function):
            return self._read_argument(name, function, place, steps)
        values = list(self._assigned(name))
        if len(values) != 1 or values[0] is None or self._is_guarded(values[0]):
            return None
        return self._read(values[0], values[0], steps)

    def _assigned(self, name: str) -> Iterator[ast.expr | None]:
        """The values that the name gets in this file; None for one that cannot be read."""
        for node in self._nodes:
            if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
                parent = self._parents[node]
                plain = isinstance(parent, (ast.Assign, ast.AnnAssign)) and isinstance(node.ctx, ast.Store)
                yield parent.value if plain else None  # type: ignore[attr-defined]

    def _read_argument(self, name: str, function: ast.FunctionDef, place: ast.AST, steps: int) -> Backend | None:
        """By the calls of the function, and its default. A text that its callers hand over in another way may be it."""
        if any(one is None or isinstance(one, ast.expr) for one in self._assigned(name)):
            return None
        found: list[Backend | None] = []
        position = _argument_names(function).index(name)
        default = _default(function, name)
        for node in self._nodes:
            if isinstance(node, ast.Call) and last_name(node.func) == function.name:
                given = _given(node, name, position)
                value = default if given is None else given
                found.append(self._read(value, node, steps) if value is not None else None)
            elif isinstance(node, ast.Call) and function.name in {last_name(one) for one in _all_arguments(node)}:
                texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                unsure = default is None or any(str(text).lower() in _KNOWN for text in texts)
                found.append(None if unsure or default is None else self._read(default, function, steps))
        if not found and default is not None:
            found = [self._read(default, function, steps)]
        return found[0] if found and len({one.name if one else None for one in found}) == 1 else None

    def _read_option(self, value: ast.Attribute, place: ast.AST, steps: int) -> Backend | None:
        """``args.backend``: by the default of the only option of that name."""
        stored = [n for n in self._nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
        if any(one.attr == value.attr for one in stored):
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
            words = (one.value for one in call.args if isinstance(one, ast.Constant))
            yield call, tuple(word for word in words if isinstance(word, str) and word.startswith("-"))

    def _function(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _is_guarded(self, node: ast.AST) -> bool:
        """Whether the script asks for GPUs before it comes here."""
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
    return [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def _default(function: ast.FunctionDef, name: str) -> ast.expr | None:
    args = function.args
    positional = [one.arg for one in (*args.posonlyargs, *args.args)]
    pairs = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
    keyword = {one.arg: value for one, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return pairs.get(name) or keyword.get(name)


def _given(call: ast.Call, name: str, position: int) -> ast.expr | None:
    words = [word.value for word in call.keywords if word.arg == name]
    return words[0] if words else call.args[position] if position < len(call.args) else None


def _all_arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _destination(call: ast.Call, texts: Sequence[str]) -> str | None:
    """The name under which argparse keeps an option."""
    told = [word.value.value for word in call.keywords if word.arg == "dest" and isinstance(word.value, ast.Constant)]
    if told:
        return str(told[0])
    long = [text for text in texts if text.startswith("--")] or list(texts)
    return long[0].lstrip("-").replace("-", "_") if long else None
