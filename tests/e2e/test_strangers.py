"""A program on the network that does not belong to a run connects to the run's ports."""

from __future__ import annotations

import re

from tests.e2e.programs import MEETING
from tests.e2e.site import Site, assert_nothing_runs, ranks, until
from tests.lab import Lab
from tests.lab.flood import flood, listening

STAY = MEETING + "while True:\n    stay_together()\n"


def test_a_flood_of_strangers_harms_no_run(site: Site, lab: Lab) -> None:
    """For longer than a lease lasts, to every port: agents, gang, checkpoints and torch's own."""
    job = site.only(0, 1).job("flooded", STAY, restarts=3, checkpoint={"paths": [], "replicas": 2})
    run = site.up(job)["run"]
    site.wait_for_output(job, "attempt 0 of node0.*attempt 0 of node0")  # both ranks
    hosts, before = lab.hosts[:2], [sorted(ranks(host, run)) for host in lab.hosts[:2]]
    # Agents and checkpoints; the hub and torch's besides.
    until(
        lambda: all(len(listening(host)) >= 2 for host in hosts), 60, lambda: str([listening(host) for host in hosts])
    )
    assert "made" in flood(lab[2], hosts, 300, 200, 4000)
    status = site.status(job)
    assert (status["state"], status["attempt"]) == ("running", 1)
    assert [sorted(ranks(host, run)) for host in hosts] == before
    shown = " ".join(site("status", job).ok().stdout.split())
    (found,) = re.finditer(r"([\d,]+) connections by strangers from (\S+) to node0,node1, the last", shown)
    assert int(found[1].replace(",", "")) > 1000
    assert found[2] == lab[2].fabric_address
    assert {one["host"] for one in status["strangers"]} == {"node0", "node1"}
    assert all(one["most"][lab[2].fabric_address] > 100 for one in status["strangers"])
    assert site("kill", job).rc == 0
    assert_nothing_runs(lab)
