"""A report that is kept for a minute comes back as it was."""

from __future__ import annotations

import json

import pytest

from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Fabric, Mesh
from ddpctl.spec.network import Network
from ddpctl.spec.plan import Facts, NodeFacts
from ddpctl.spec.preflight import PreflightReport, from_document, to_document

REPORT = PreflightReport(
    cluster="lab",
    hosts=("a", "b"),
    findings=(
        Finding(
            "disk.free", Severity.WARNING, "1.5 GB free", "a", None, "make room", "du -x /", {"free": 1.5, "at": None}
        ),
        Finding("net.mesh", Severity.OK, "every link connects"),
    ),
    duration_s=1.25,
    network=Network(("a", "b"), ((0, 1, "ok", 0.2, 9400.0), (1, 0, "ok", None, None))),
    facts=Facts({"a": NodeFacts(8, 64, "10.0.0.1", "eth1", "2.4.0", True)}, 29500, 29501),
    fabric={"a": Fabric("10.0.0.1", "eth1"), "b": Fabric("10.0.0.2", None)},
    open_ports={"a": (29500, 40000), "b": ()},
)


def test_a_kept_report_comes_back_as_it_was() -> None:
    kept = json.loads(json.dumps(to_document(REPORT)))
    assert from_document(kept) == REPORT


def test_the_mesh_is_not_kept() -> None:
    measured = PreflightReport("lab", ("a",), (), 1.0, mesh=Mesh(hosts=("a",)))
    assert from_document(to_document(measured)).mesh is None


@pytest.mark.parametrize("change", [{"findings": [{}]}, {"facts": {"nodes": {"a": {"gpus": "many"}}}}, {"hosts": None}])
def test_what_is_no_report_is_a_value_error(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        from_document(to_document(REPORT) | change)
