"""The hosts from which a run is removed, and the error about the hosts where the run stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl.errors import HostsFailed, RemoteError, Unreachable, UsageError
from ddpctl.files.records import recorded_runs, save_run
from ddpctl.spec.removal import removal_document
from ddpctl.stages.remove import remove_run
from ddpctl.stages.status import find_run
from ddpctl_worker.wire.contract import LIVE
from tests.stages.test_status import OLD, part
from tests.transport.dry import Answer, DryFleet, DryTransport


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    save_run("train", OLD, {})


def host(name: str, state: str, hosts: list[str], removes: Answer | None = None) -> DryTransport:
    status = {"runs": [part(OLD, name, state, hosts)]}
    return DryTransport(name, {"status": status, "remove": removes or {"removed": True}})


def test_it_goes_everywhere_and_from_the_records_of_this_machine() -> None:
    fleet = DryFleet([host("a", "failed", ["a", "b"]), host("b", "failed", ["a", "b"], {"removed": False})])
    removed = remove_run(find_run(fleet, "train"), fleet)
    removed.raise_for_errors()
    told: dict[str, Any] = removal_document([removed])
    parts = [{"host": "a", "removed": True, "error": None}, {"host": "b", "removed": False, "error": None}]
    assert told == {"schema": 1, "runs": [{"job": "train", "run": OLD, "hosts": parts}]}
    assert recorded_runs(OLD) == []


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "stale", "pending"])
def test_a_run_that_is_live_anywhere_is_removed_nowhere(state: str) -> None:
    fleet = DryFleet([host("a", "failed", ["a", "b"]), host("b", state, ["a", "b"])])
    with pytest.raises(UsageError, match=f"run {OLD} of train is live on b; end it: ddpctl kill {OLD}"):
        remove_run(find_run(fleet, OLD), fleet)
    assert not [asked for asked in fleet.calls if asked.verb == "remove"]


def test_hosts_out_of_reach_are_named_and_the_others_done() -> None:
    hosts = ["a", "dead", "away"]
    fleet = DryFleet([host("a", "failed", hosts), DryTransport("dead", unreachable=Unreachable("no answer"))])
    removed = remove_run(find_run(fleet, OLD), fleet)
    assert [part.removed for part in removed.hosts] == [True, False, False]
    with pytest.raises(HostsFailed, match=f"2 of 3 hosts; `ddpctl rm {OLD}` tries again") as caught:
        removed.raise_for_errors()
    assert caught.value.exit_code == 4
    assert "away: it is not in the inventory" in str(caught.value)
    assert recorded_runs(OLD) != []  # to try again from here


def test_a_node_has_the_last_word() -> None:
    said = RemoteError("run is live here", kind=LIVE, hint="end it", host="a")
    fleet = DryFleet([host("a", "failed", ["a"], said)])
    assert remove_run(find_run(fleet, OLD), fleet).hosts[0].error is said
