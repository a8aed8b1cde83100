"""A host whose folder of slots is not safe is refused by preflight and by a start, before files are sent to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddpctl.errors import HostsFailed, RemoteError
from ddpctl.files.inventory import load_text
from ddpctl.spec.finding import Severity
from ddpctl.stages.launch import launch_to_check
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.stages.slots import refuse_in_use
from ddpctl_worker.wire.contract import TIMEOUT, UNSAFE_PATH
from tests.spec.test_planning import hosts, plan
from tests.transport.dry import Answer, Asked, DryFleet, DryTransport

FOLDER = "/var/tmp/ddpctl-slots"
UNSAFE = f"{FOLDER} is a symbolic link"
FIX = f"sudo rm {FOLDER}"
FILE = b"""
hosts: [node0, node1, node2]
jobs:
  j: {script: train.py, code: null, workdir: /w, master_port: 29500, nproc_per_node: 1}
"""


def fleet(slots_of_node1: Answer) -> DryFleet:
    free: Answer = {"fits": True}
    answers = {"node0": free, "node1": slots_of_node1, "node2": RemoteError("no answer", kind=TIMEOUT)}
    return DryFleet(
        DryTransport(name, {"probe": _unknown, "free_port": {"ports": [29501]}, "slots": answer})
        for name, answer in answers.items()
    )


def _unknown(asked: Asked) -> dict[str, Any]:
    """A host that can answer no question of a check."""
    answers = {question["id"]: {"ok": False, "error": "unknown"} for question in asked.args["questions"]}
    return {"answers": answers, "received": 0.0, "sent": 0.0}


def unsafe() -> RemoteError:
    return RemoteError(UNSAFE, kind=UNSAFE_PATH, hint=FIX, host="node1")


def test_preflight_reports_an_unsafe_folder_as_an_error_with_its_fix() -> None:
    inventory = load_text(FILE, "i.yaml")
    launch = launch_to_check(inventory, inventory.job())
    options = Options(only=("host.slots",), slots=True)
    report = run_preflight(launch, fleet(unsafe()), lambda event: None, options=options)
    found = [(one.severity, one.host, one.message, one.fix) for one in report.findings if one.check == "host.slots"]
    assert found == [
        (Severity.ERROR, "node1", UNSAFE, FIX),
        (Severity.UNKNOWN, "node2", "not checked: no answer", None),
    ]
    assert report.exit_code == 3


@pytest.mark.parametrize(("answer", "refused"), [(unsafe, True), (lambda: RemoteError("no answer"), False)])
def test_a_start_refuses_an_unsafe_folder_at_once(answer: Callable[[], RemoteError], refused: bool) -> None:
    """Any other host that cannot be asked is left to the start itself."""
    made, nodes = plan({"master_port": 29500}, hosts(3, slots=1)), fleet(answer())
    if not refused:
        refuse_in_use(made, nodes)
        return
    with pytest.raises(HostsFailed, match="is not safe on node1; nothing was started") as caught:
        refuse_in_use(made, nodes)
    assert str(caught.value.errors["node1"]) == f"node1: {UNSAFE}; {FIX}"
