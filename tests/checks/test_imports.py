"""A cause is reported once: torch and torchvision have checks of their own."""

from __future__ import annotations

from typing import Any

from ddpctl.checks import job_imports, torch
from ddpctl.checks.judge import judge_checks
from ddpctl.spec.finding import Severity
from tests.checks.case import CASES, load, view_of


def told(case: dict[str, Any]) -> dict[Severity, list[tuple[str, str | None, str]]]:
    found: dict[Severity, list[tuple[str, str | None, str]]] = {}
    for one in judge_checks((*torch.CHECKS, *job_imports.CHECKS), view_of(case)):
        found.setdefault(one.severity, []).append((one.check, one.host, one.message))
    return found


def test_a_torchvision_that_a_package_of_the_script_needs_is_one_error() -> None:
    found = told(load(CASES / "torch.vision" / "needed-by-another-package.json"))
    assert [(check, host) for check, host, _ in found[Severity.ERROR]] == [("torch.vision", "node1")]
    assert found[Severity.INFO] == [
        ("job.imports", "node1", "train.py:2: `import lightning` fails with the error of torch.vision")
    ]
    assert "job.imports" not in [check for check, _, _ in found[Severity.OK]]


def test_a_torch_that_cannot_be_imported_is_one_error_and_hides_nothing_else() -> None:
    case = load(CASES / "torch.vision" / "needed-by-another-package.json")
    error = "ImportError: libcudart.so.12: cannot open shared object file"
    case["answers"]["node1"]["torch_import"] = {"torch": None, "error": error, "torchvision_error": None}
    key = next(key for key in case["answers"]["node1"] if key.startswith("modules:"))
    case["answers"]["node1"][key] = {
        "failed": [
            {"statement": "import torch", "error": error, "kind": "import", "missing": None, "through": []},
            {
                "statement": "import lightning",
                "error": "ModuleNotFoundError: No module named 'lightning'",
                "kind": "missing",
                "missing": "lightning",
                "through": [],
            },
        ],
        "error": None,
    }
    found = told(case)
    assert [(check, host) for check, host, _ in found[Severity.ERROR]] == [
        ("torch.import", "node1"),
        ("job.imports", "node1"),
    ]
    assert "imports lightning, which is not installed" in found[Severity.ERROR][1][2]
    assert found[Severity.INFO] == [
        ("job.imports", "node1", "train.py:1: `import torch` fails with the error of torch.import")
    ]


def test_what_was_not_looked_at_is_not_among_what_passed() -> None:
    for check, name in (("job.imports", "not-read"), ("job.syntax", "newer-everywhere")):
        found = told(load(CASES / check / f"{name}.json"))
        assert check in [one for one, _, _ in found[Severity.UNKNOWN]]
        assert check not in [one for one, _, _ in found.get(Severity.OK, [])]
