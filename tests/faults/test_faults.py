"""`make test` notices faults in the product."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.copy import CHECKOUT, apply_edit, copy_with_fault, find_failed_tests


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_passage_of_each_fault_is_in_the_source(fault: Fault) -> None:
    for edit in fault.edits:
        assert apply_edit((CHECKOUT / edit.file).read_text(), edit)


@pytest.mark.lab
@pytest.mark.heavy
@pytest.mark.full(covered_by="tests/faults/test_faults.py::test_the_passage_of_each_fault_is_in_the_source")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    assert find_failed_tests(copy_with_fault(fault, tmp_path), tmp_path, fault.tests)
