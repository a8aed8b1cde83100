"""Imports run down only: the tree of docs/architecture.md, read from the source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORCHESTRATOR = ROOT / "orchestrator" / "ddpctl"
WORKER = ROOT / "worker" / "ddpctl_worker"

# layer -> layers it may import (itself always)
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "spec": {"errors"},
    "checks": {"spec", "errors"},
    "render": {"spec", "errors"},
    "screen": {"render", "spec", "errors"},
    "files": {"spec", "errors"},
    "code": {"spec", "errors"},
    "transport": {"spec", "errors"},
    "environment": {"transport", "files", "code", "spec", "errors"},
    "stages": {"checks", "transport", "environment", "files", "code", "spec", "errors"},
    "cli": {"stages", "checks", "transport", "environment", "screen", "render", "files", "code", "spec", "errors"},
}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # the fields of a statement that hold statements
STDLIB_ONLY_BUT = {"ddpctl_worker"}
IN_A_RANK = WORKER / "doctor" / "rank" / "sitecustomize.py"  # it looks into the torch that the rank has imported
# room of the worker -> rooms it may import (itself always), from the lowest floor to the highest
ROOMS: dict[str, set[str]] = {
    "wire": set(),
    "rules": set(),
    "machine": {"wire"},
    "record": {"machine", "rules", "wire"},
    "facts": {"machine", "rules", "wire"},
    "slots": {"facts", "machine", "rules", "wire"},
    "gang": {"record", "machine", "wire"},
    "store": {"record", "machine", "rules", "wire"},
    "doctor": {"facts", "record", "machine", "rules", "wire"},
    "checkpoint": {"store", "record", "machine", "rules", "wire"},
    "run": {"checkpoint", "doctor", "facts", "gang", "slots", "store", "record", "machine", "rules", "wire"},
    "agent": {"run", "checkpoint", "gang", "slots", "store", "record", "machine", "rules", "wire"},
    "mesh": {"run", "doctor", "record", "machine", "rules", "wire"},
    "verbs": {"run", "checkpoint", "doctor", "facts", "slots", "store", "record", "machine", "rules", "wire"},
}
# The modules of the worker that both sides use: the words of the protocol, and the rules that both apply.
SHARED = re.compile(r"ddpctl_worker(\.wire(\.contract(\.\w+)?)?|\.rules(\..*)?)?")


@cache
def modules(root: Path) -> list[Path]:
    found = sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)
    assert found, f"no module below {root}"
    return found


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a module, also those inside a function. An expression holds no import."""
    found: list[ast.Import | ast.ImportFrom] = []
    left: list[ast.AST] = [parse(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not isinstance(node, ast.expr):
            for block in BLOCKS:
                left += getattr(node, block, ())
    return found


def imports(path: Path) -> Iterator[str]:
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "ddpctl":
                yield from (f"ddpctl.{alias.name}" for alias in node.names)


def own_imports(path: Path, package: str) -> set[str]:
    """Return the modules of ``package`` that any module of the package imports, also inside a function.

    By the text: parsing the whole package takes half a second.
    """
    found = set()
    text = re.sub(r"#.*", "", path.read_text())
    for module, many, few in re.findall(r"^[ \t]*from ([\w.]+) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE):
        if top(module) == package:
            names = (name.split()[0] for name in (many or few).split(",") if name.strip())
            found |= {module} | {f"{module}.{name}" for name in names}
    return found - {package}


def top(name: str) -> str:
    return name.split(".")[0]


def layer_of(path: Path) -> str:
    return path.relative_to(ORCHESTRATOR).parts[0].removesuffix(".py")


def test_every_module_is_in_a_layer() -> None:
    assert {layer_of(path) for path in modules(ORCHESTRATOR)} - {"__init__", "__main__"} == set(ALLOWED)


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_run_down_only(layer: str) -> None:
    wrong = []
    for path in (path for path in modules(ORCHESTRATOR) if layer_of(path) == layer):
        for name in imports(path):
            parts = name.split(".")
            above = parts[0] == "ddpctl" and len(parts) > 1 and parts[1] not in ("__version__", layer, *ALLOWED[layer])
            # The payload reads the worker's sources as files.
            private = parts[0] == "ddpctl_worker" and not SHARED.fullmatch(name)
            if above or private:
                wrong.append(f"{path.relative_to(ORCHESTRATOR)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("folder", ["", *sorted(path.parent.name for path in WORKER.glob("*/__init__.py"))])
def test_the_worker_needs_the_standard_library_only(folder: str) -> None:
    wrong = []
    for path in (path for path in modules(WORKER) if path.relative_to(WORKER).parts[0] == (folder or path.name)):
        allowed = sys.stdlib_module_names | STDLIB_ONLY_BUT | ({"torch"} if path == IN_A_RANK else set())
        wrong += [f"{path.relative_to(WORKER)} imports {name}" for name in imports(path) if top(name) not in allowed]
    assert wrong == []


def test_every_folder_of_the_worker_is_a_package() -> None:
    folders = {path.relative_to(WORKER).parts[0] for path in WORKER.glob("*/**/*.py")}
    assert folders == {path.parent.name for path in WORKER.glob("*/__init__.py")}


def test_every_package_of_the_worker_is_a_room() -> None:
    assert {path.parent.name for path in WORKER.glob("*/__init__.py")} == set(ROOMS)


def test_the_rooms_have_no_circle() -> None:
    below: set[str] = set()
    for room, allowed in ROOMS.items():
        assert allowed <= below, f"{room} may import {sorted(allowed - below)}, which stand above it"
        below.add(room)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_worker_imports_rooms_below_it(room: str) -> None:
    for path in (WORKER / room).rglob("*.py"):
        rooms = {name.split(".")[1] for name in own_imports(path, WORKER.name)} & set(ROOMS)
        wrong = rooms - ROOMS[room] - {room}
        assert not wrong, f"{path.relative_to(WORKER)} imports {sorted(wrong)}"


@pytest.mark.parametrize("root", [ORCHESTRATOR, WORKER], ids=lambda root: root.name)
def test_no_circle_of_imports(root: Path) -> None:
    """Also no circle that a late import, inside a function, would hide."""
    paths = {
        ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in modules(root)
    }
    left = {}
    for name, path in paths.items():
        found = own_imports(path, root.name) & paths.keys()
        # `from package import module` needs that module, and the package only as a place.
        left[name] = {one for one in found if one != name and not any(other.startswith(f"{one}.") for other in found)}
    while True:  # a module that needs no remaining module is in no circle
        done = {name for name, names in left.items() if not names & left.keys()}
        if not done:
            break
        left = {name: names for name, names in left.items() if name not in done}
    assert not left, f"in a circle, or above one: {sorted(left)}"


@pytest.mark.parametrize("layer", ["spec", "checks"])
def test_the_pure_layers_do_no_io(layer: str) -> None:
    """No clock, no files, no processes, no sockets, no print in what is called pure."""
    forbidden = {"socket", "subprocess", "time", "os", "threading", "random", "secrets", "tempfile", "shutil"}
    for path in modules(ORCHESTRATOR / layer):
        if path.name in ("__main__.py", "document.py", "schema.py"):
            continue
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & forbidden, f"{path.relative_to(ORCHESTRATOR)} imports {sorted(tops & forbidden)}"


def test_a_public_class_has_its_name_alone() -> None:
    """With two things of the same name a reader may look in the wrong place."""
    places: dict[str, list[str]] = {}
    for path in [*modules(ORCHESTRATOR), *modules(WORKER)]:
        for name in re.findall(r"^class ([^\W_]\w*)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
