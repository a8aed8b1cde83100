"""py-spy comes to the nodes with the code: once, where it is wanted, and it runs there."""

from __future__ import annotations

import json
import re

import pytest

from ddpctl.environment.tools import PY_SPY, own_program
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, ranks, wait_for_ranks
from tests.lab import Host, Lab

BASE = "/srv/py-spy"


@pytest.fixture
def fresh(site: Site, lab: Lab) -> Site:
    """Two hosts with a base_dir that nothing was ever sent to."""
    site.only(0, 1)
    for host in site.hosts:
        host["base_dir"] = BASE
    for machine in lab.hosts[:2]:
        machine.run(["rm", "-rf", BASE])
    return site


def tools(host: Host) -> list[str]:
    """Return the files in the folder of tools."""
    return host.run(["sh", "-c", f"ls {BASE}/tools 2>/dev/null || true"]).stdout.split()


def test_up_brings_py_spy_once_and_it_reads_a_rank(fresh: Site, lab: Lab) -> None:
    path = f"{BASE}/tools/py-spy-{own_program(PY_SPY).sha256}"
    job = fresh.job("spied", SLEEP)
    first = fresh("up", "--job", job, "-d").ok()
    assert int(sent(first.stderr)) > 8_000_000
    run = fresh.status(job)["run"]
    wait_for_ranks(lab.hosts[:2], run)
    fresh.wait_for_output(job, "(sleeps.*){2}")
    for host in lab.hosts[:2]:
        assert tools(host) == [path.rpartition("/")[2]]
        assert host.run([path, "--version"]).stdout.startswith("py-spy ")
        record = json.loads(host.read(f"{BASE}/runs/{run}/{host.name}/run.json"))
        assert record["doctor"] == {"stall": 30.0}
        (rank,) = ranks(host, run).values()
        said = host.run([path, "dump", "--nonblocking", "--json", "--pid", str(rank.pid)]).stdout
        assert f"{job}.py" in said
    fresh("kill", job).ok()
    again = fresh("up", "--job", job, "-d").ok()
    assert sent(again.stderr) == "0"
    fresh("kill", job).ok()


@pytest.mark.full(covered_by="tests/stages/test_send.py::test_a_job_that_wants_no_doctor_gets_none")
def test_doctor_off_brings_none(fresh: Site, lab: Lab) -> None:
    job = fresh.job("unspied", SLEEP, doctor="off")
    done = fresh("up", "--job", job, "-d").ok()
    assert int(sent(done.stderr)) < 1_000_000
    run = fresh.status(job)["run"]
    for host in lab.hosts[:2]:
        assert tools(host) == []
        assert json.loads(host.read(f"{BASE}/runs/{run}/{host.name}/run.json"))["doctor"] is None
    fresh("kill", job).ok()


def sent(text: str) -> str:
    """The bytes that `up` says it sent."""
    found = re.search(r"^code .* (\d+) bytes sent$", text, re.MULTILINE)
    assert found, text
    return found[1]
