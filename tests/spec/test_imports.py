"""What a program imports when it starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.imports import Imports, packages_of, read_imports
from ddpctl.spec.source import IF_IMPORTABLE, IF_THERE, NEEDED, OPTIONAL

HERE = sys.version_info[:2]


def imports(files: Mapping[str, str] | str, script: str | None = "train.py", **keys: object) -> Imports:
    """Of a folder, or of a single script."""
    folder = {"train.py": files} if isinstance(files, str) else files
    found = read_imports(
        lambda name: text.encode() if (text := folder.get(name)) is not None else None,
        frozenset(folder),
        script=None if "module" in keys else script,
        **keys,  # type: ignore[arg-type]
    )
    assert found is not None
    return found


def guards(found: Imports) -> dict[str, str]:
    return {one.statement: one.guard for one in found.statements}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os, torch.nn as nn\n# import scipy\n", {"import torch.nn": NEEDED}),
        ("from torch import nn as n, optim\n", {"from torch import nn, optim": NEEDED}),
        ("def f():\n    import timm\n", {"import timm": OPTIONAL}),
        ("class A:\n    import timm\n", {"import timm": NEEDED}),
        ("async def f():\n    if x:\n        import timm\n", {"import timm": OPTIONAL}),
        ("try:\n    import apex\nexcept ImportError:\n    import timm\n",
         {"import apex": IF_IMPORTABLE, "import timm": OPTIONAL}),
        ("try:\n    import apex\nexcept ModuleNotFoundError:\n    apex = None\n", {"import apex": IF_THERE}),
        ("try:\n    import apex\nexcept Exception:\n    apex = None\n", {"import apex": OPTIONAL}),
        ("try:\n    import apex\nexcept:\n    apex = None\n", {"import apex": OPTIONAL}),
        ("try:\n    import apex\nexcept (ImportError, OSError):\n    apex = None\n", {"import apex": OPTIONAL}),
        ("try:\n    import apex\nfinally:\n    import timm\n", {"import apex": NEEDED, "import timm": NEEDED}),
        ("try:\n    import apex\nexcept ImportError as e:\n    raise SystemExit('no')\n", {"import apex": NEEDED}),
        ("import sys\ntry:\n    import apex\nexcept ImportError:\n    sys.exit(1)\n", {"import apex": NEEDED}),
        ("import contextlib as c\nwith c.suppress(ImportError):\n    import apex\n", {"import apex": IF_IMPORTABLE}),
        ("with open('x'):\n    import apex\n", {"import apex": NEEDED}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import timm\n", {}),
        ("import typing as t\nif not t.TYPE_CHECKING:\n    import timm\n", {"import timm": NEEDED}),
        ("import sys\nif sys.version_info < (3, 11):\n    import tomli\nelse:\n    import tomllib\n",
         {"import tomli": OPTIONAL, "import tomllib": OPTIONAL}),
        ("if __name__ == '__main__':\n    import timm\nelse:\n    import never\n", {"import timm": NEEDED}),
        ("for x in y:\n    import timm\n", {"import timm": OPTIONAL}),
        ("import distutils, tkinter, random\n", {"import distutils": NEEDED, "import tkinter": NEEDED}),
        ("def f():\n    import timm\nimport timm\n", {"import timm": NEEDED}),
    ],
)  # fmt: skip
def test_what_runs_what_may_run_and_what_is_caught(text: str, expected: dict[str, str]) -> None:
    assert guards(imports(text)) == expected


def test_only_what_the_script_imports_counts_wherever_it_stands_in_the_folder() -> None:
    found = imports(
        {
            "train.py": "import models.net\nfrom utils import helper\nimport torch\n",
            "models/__init__.py": "from .heads import Head\nfrom . import losses\n",
            "models/heads.py": "import timm\nif __name__ == '__main__':\n    import never\n",
            "models/losses.py": "from ..elsewhere import x\n",
            "models/net.py": "import einops\n",
            "utils/helper.py": "import numpy\nimport train\n",
            "unrelated.py": "import not_there\n",
            "tests/test_x.py": "import pytest\nthis is no python",
        }
    )
    assert guards(found) == dict.fromkeys(("import timm", "import einops", "import numpy", "import torch"), NEEDED)
    assert [one.where for one in found.statements] == [
        "models/heads.py:1",
        "models/net.py:1",
        "utils/helper.py:1",
        "train.py:3",
    ]
    assert [(one.where, one.certain) for one in found.faults] == [("models/losses.py:1", False)]
    assert "elsewhere" in found.faults[0].message


def test_what_a_module_of_the_folder_needs_is_as_optional_as_the_module() -> None:
    files = {
        "train.py": "def f():\n    import late\ntry:\n    import fast\nexcept ImportError:\n    fast = None\n",
        "late.py": "import timm\nnot python at all\n",
        "fast.py": "import triton\nimport both\n",
        "both.py": "import numpy\n",
    }
    assert guards(imports(files)) == {"import triton": IF_IMPORTABLE, "import numpy": IF_IMPORTABLE}
    files["train.py"] += "import both\n"
    assert guards(imports(files))["import numpy"] == NEEDED


def test_a_folder_is_a_package_only_by_what_lies_in_it() -> None:
    """`wandb/` beside the script holds the runs of wandb; the package is installed."""
    files = {"train.py": "import wandb\nfrom data import loader\n", "wandb/run-1/config.yaml": "", "data/loader.py": ""}
    assert guards(imports(files)) == {"import wandb": NEEDED}


def test_the_script_sees_its_own_folder_a_module_the_top() -> None:
    files = {"app/train.py": "import helper\nimport app.other\n", "app/helper.py": "import timm\n", "app/other.py": ""}
    assert guards(imports(files, "app/train.py")) == {"import timm": NEEDED, "import app.other": NEEDED}
    assert guards(imports(files, module="app.train")) == {"import helper": NEEDED}
    assert guards(imports(files, "app/train.py", search=["."])) == {"import timm": NEEDED}


def test_a_module_is_run_with_its_packages() -> None:
    files = {"app/__init__.py": "import timm\n", "app/__main__.py": "from .x import y\n", "app/x.py": "import einops\n"}
    assert guards(imports(files, module="app")) == {"import timm": NEEDED, "import einops": NEEDED}
    assert read_imports(lambda name: None, frozenset(), module="installed.train") is None


def test_a_program_that_changes_its_path_may_find_more() -> None:
    files = {
        "train.py": "import sys\nsys.path.insert(0, 'src')\nimport mine.net\nimport elsewhere\n",
        "src/mine/__init__.py": "",
        "src/mine/net.py": "import timm\n",
    }
    found = imports(files)
    assert guards(found) == {"import timm": NEEDED, "import elsewhere": NEEDED}
    assert not found.certain
    assert imports("import os, sys\nos.path.join('a')\nsys.argv\nimport timm\n").certain
    for text in ("import site\nsite.addsitedir('x')\n", "from sys import path\npath.append('x')\n"):
        assert not imports(text).certain


def test_a_relative_import_in_a_script_is_a_fault_and_in_a_module_is_none() -> None:
    files = {"app/train.py": "from . import x\n", "app/x.py": "import timm\n", "app/__init__.py": ""}
    assert "module:" in (imports(files, "app/train.py").faults[0].fix or "")
    assert imports(files, module="app.train").faults == ()


def test_a_script_that_is_not_sent_is_a_fault() -> None:
    assert "not in the code folder" in imports({"other.py": ""}).faults[0].message


def test_a_syntax_error_names_its_place_and_who_refuses_it() -> None:
    found = imports({"train.py": "import bad\nimport late\n", "bad.py": "x = 1\nprint 'x'\n", "late.py": "return 1\n"})
    assert [one.where for one in found.faults] == ["bad.py:2", "late.py:1"]
    assert all(one.below == (HERE[0], HERE[1] + 1) and one.newer_unknown for one in found.faults)
    assert found.unread == ("bad.py", "late.py")


def test_a_null_byte_is_refused_by_every_python_or_by_this_one() -> None:
    assert imports("x = 1\0\n").faults


@pytest.mark.parametrize(
    ("text", "below"),
    [
        ("with (open('a') as a, open('b') as b):\n    pass\n", (3, 9)),
        ("match 1:\n    case 1:\n        pass\n", (3, 10)),
        ("x: 'list[int] | None' = None\nif (n := 1):\n    pass\nf'{n=}'\n", None),
        pytest.param("type X = int\n", (3, 12), marks=pytest.mark.skipif(HERE < (3, 12), reason="newer syntax")),
    ],
)
def test_newer_syntax_names_the_python_that_it_needs(text: str, below: tuple[int, int] | None) -> None:
    faults = imports(text).faults
    assert [one.below for one in faults] == ([below] if below else [])
    assert not any(one.newer_unknown for one in faults)


def test_a_script_that_lies_elsewhere_may_have_any_module_beside_it() -> None:
    found = read_imports(lambda name: b"import helper, torch\n", None, script="/srv/train.py")
    assert found is not None
    assert list(guards(found)) == ["import helper", "import torch"]
    assert found.faults == ()


@given(st.binary() | st.text().map(str.encode))
def test_no_text_is_too_strange(text: bytes) -> None:
    read_imports(lambda name: text, frozenset({"train.py"}), script="train.py")


_LINES = st.sampled_from(
    ["import a", "from b import c", "try:", "except ImportError:", "if x:", "else:", "def f():", "pass", "import p.q"]
)


@given(st.lists(st.tuples(st.integers(0, 3), _LINES), max_size=12))
def test_any_program_is_read_and_each_import_is_one_that_it_has(lines: list[tuple[int, str]]) -> None:
    text = "".join(f"{' ' * depth}{line}\n" for depth, line in lines)
    found = imports({"train.py": text, "p/__init__.py": text, "p/q.py": "import z\n"})
    assert {one.statement for one in found.statements} <= {"import a", "from b import c", "import z"}


def test_the_packages_of_a_script_are_known_or_the_module_is_named() -> None:
    text = (
        b"import torch, torchvision.transforms, yaml\nfrom PIL import Image\nimport own_lab.tools\nimport numpy as np\n"
    )
    found = read_imports({"train.py": text}.get, ["train.py"], script="train.py")
    assert found is not None
    assert packages_of(found) == (["torchvision", "PyYAML", "pillow", "numpy"], ["own_lab"])
