"""`up` right after `preflight` does not measure again what was clean a moment ago."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpctl.spec.preflight import from_document, to_document
from ddpctl.stages.preflight import Options
from tests.lab import Lab
from tests.lab_preflight.preflight import preflight

AGAIN = Options(reuse=True)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_clean_result_of_the_last_minute_is_taken_again(lab3: Lab) -> None:
    first = preflight(lab3, options=Options(), jobs={})
    assert first.exit_code == 0
    again = preflight(lab3, options=AGAIN, jobs={})
    assert again.age_s is not None
    assert first.age_s is None
    lasting = tuple(found for found in first.findings if found.check != "host.slots")  # it changes at any moment
    assert (again.findings, again.facts, again.fabric) == (lasting, first.facts, first.fabric)
    assert again.open_ports == first.open_ports
    assert preflight(lab3, options=Options(), jobs={}).age_s is None
    assert preflight(lab3, options=AGAIN, jobs={}, cluster="other").age_s is None


def test_port_that_was_taken_meanwhile_is_found(lab3: Lab) -> None:
    port = preflight(lab3, options=Options(), jobs={}).facts.master_port
    assert port
    while not lab3[0].port_free(port):  # the preflight's own listener ends a moment after the report
        time.sleep(0.02)
    program = f"import socket, time; s = socket.create_server(('', {port})); time.sleep(600)"
    lab3[0].popen(["/usr/bin/python3", "-c", program])
    while lab3[0].port_free(port):
        time.sleep(0.02)
    again = preflight(lab3, options=AGAIN, jobs={})
    assert again.age_s is None
    assert again.facts.master_port not in (None, port)


def test_trouble_is_never_taken_from_memory(lab3: Lab) -> None:
    lab3[0].drop(from_=lab3[1])
    assert preflight(lab3, options=Options(), jobs={}).exit_code == 3
    lab3[0].clear_firewall()
    again = preflight(lab3, options=AGAIN, jobs={})
    assert again.exit_code == 0
    assert again.age_s is None


def test_document_comes_back_as_it_was(lab3: Lab) -> None:
    report = preflight(lab3)
    back = from_document(to_document(report))
    assert (back.findings, back.facts, back.fabric, back.hosts) == (
        report.findings,
        report.facts,
        report.fabric,
        report.hosts,
    )
