"""The restart of an ended run, before it is started: the refusals, the hosts that take part, and the code."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ddpctl.code import find_archive
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, ProvisionError, Unreachable, UsageError
from ddpctl.files.inventory import load_inventory
from ddpctl.spec.event import Event, Note
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import CodeRef, RunIdentity
from ddpctl.stages.launch import Launch
from ddpctl.stages.restart import from_a_host, launch_again
from ddpctl.stages.status import find_run
from tests.environment.support import Heard, fleet_of, local_inventory
from tests.transport.dry import DryFleet, DryTransport

RUN = "20260102T030405Z-abcdef"
NEXT = RunIdentity("20260102T040405Z-abcdef", Origin("me", "here", "/home/me", 1), "2026-01-02T04:04:05+00:00")
FILE = """
cluster: lab
project: exp
hosts: ['gpu[0-2]']
jobs:
  j: {script: train.py, code: null, workdir: /w, args: [new]}
"""
SETTINGS = {"job": "j", "hosts": ["gpu0", "gpu1"], "nodes": 2, "nproc": None, "local_rank_arg": None}
SETTINGS |= {"keys": {"script": "train.py", "args": ["old"]}, "secrets": [], "notified": False}
MOMENT = "2026-01-02T03:14:05Z"
FIRST = {"hosts": ["gpu0", "gpu1"], "started": MOMENT}


def node(host: str, state: str = "failed", **record: Any) -> dict[str, Any]:
    full = {"project": "exp", "hosts": ["gpu0", "gpu1"], "world_size": 2, "settings": SETTINGS, "code": None, **record}
    cause = {"host": "gpu1", "reason": "node_lost", "message": "lost", "time": MOMENT} if state == "failed" else None
    names = {"run": RUN, "job": "j", "cluster": "lab", "host": host, "node_rank": int(host[-1])}
    return {**names, "state": state, "cause": cause, "ended": MOMENT, "record": full}


def answering(host: str, *runs: dict[str, Any]) -> DryTransport:
    return DryTransport(host, {"status": {"runs": list(runs)}})


def silent(host: str) -> DryTransport:
    return DryTransport(host, unreachable=Unreachable("no answer", host=host))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def again(folder: Path, *hosts: DryTransport, text: str = FILE, told: list[Event] | None = None) -> Launch:
    (folder / "i.yaml").write_text(text)
    notes: list[Event] = told if told is not None else []
    fleet = DryFleet(list(hosts))
    return launch_again(fleet, load_inventory(folder / "i.yaml"), find_run(fleet, "j"), NEXT, notes.append)


def test_the_record_wins_over_the_inventory_and_the_difference_is_told(tmp_path: Path) -> None:
    told: list[Event] = []
    found = again(
        tmp_path, answering("gpu0", node("gpu0")), answering("gpu1", node("gpu1")), answering("gpu2"), told=told
    )
    assert found.job is not None
    assert (found.names, found.job.args, found.alone) == (("gpu0", "gpu1"), ("old",), True)
    assert found.earlier is not None
    (attempt,) = found.earlier.attempts
    assert (found.earlier.run, attempt.number, attempt.cause and attempt.cause.reason) == (RUN, 1, "node_lost")
    (note,) = (one for one in told if isinstance(one, Note))
    assert note.message.startswith("args, workdir: it continues with the run's own, not with what job j has now")


def test_a_script_that_starts_its_own_processes_is_started_again_as_before(tmp_path: Path) -> None:
    own = {**SETTINGS, "start": "node"}
    parts = [answering(host, node(host, settings=own)) for host in ("gpu0", "gpu1")]
    found = again(tmp_path, *parts, answering("gpu2"))
    assert found.settings is not None
    assert found.settings.start == "node"


def test_a_live_run_is_refused(tmp_path: Path) -> None:
    live = [node(host, "running", restart={"first": FIRST}) for host in ("gpu0", "gpu1")]
    with pytest.raises(UsageError, match=r"j is running .* restart it by themselves") as refused:
        again(tmp_path, answering("gpu0", live[0]), answering("gpu1", live[1]), answering("gpu2"))
    assert f"ddpctl kill {RUN}" in str(refused.value.hint)


def test_one_that_may_be_live_where_nobody_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="has ended on gpu1 is not known"):
        again(tmp_path, answering("gpu0", node("gpu0", "killed")), silent("gpu1"), answering("gpu2"))


def voting(host: str, state: str = "failed", settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
    """Return the host's part of a run with restarts on three hosts; a single host is enough to go on."""
    hosts = ["gpu0", "gpu1", "gpu2"]
    keys = {"script": "train.py", "restarts": 1, "elastic": {"min_nodes": 1, "max_nodes": 3}}
    own = {**settings, "hosts": hosts, "nodes": 3, "keys": keys}
    return node(host, state, hosts=hosts, settings=own, restart={"first": {"hosts": hosts, "started": MOMENT}})


def test_those_who_may_have_continued_it_elsewhere_are_waited_for(tmp_path: Path) -> None:
    """gpu2 was cut off and ended its part; gpu0 and gpu1 are a majority without it."""
    with pytest.raises(ConnectError, match=r"ended on gpu0,gpu1 is not known.*may have continued it") as refused:
        again(tmp_path, silent("gpu0"), silent("gpu1"), answering("gpu2", voting("gpu2")))
    assert f"ddpctl restart {RUN}" in str(refused.value.hint)


@pytest.mark.parametrize("states", [("failed", "failed"), ("failed", "lost"), ("lost", "lost")])
def test_one_that_cannot_have_continued_it_alone_is_done_without(tmp_path: Path, states: tuple[str, str]) -> None:
    """A host that lost power and is back takes part in the restart.

    Its agent is gone, so the silent host gpu2 has only its own vote and cannot have continued the run.
    """
    parts = (answering(host, voting(host, state)) for host, state in zip(("gpu0", "gpu1"), states, strict=True))
    found = again(tmp_path, *parts, silent("gpu2"))
    assert found.names == ("gpu0", "gpu1")


def test_one_that_may_still_run_an_attempt_alone_is_waited_for(tmp_path: Path) -> None:
    """Of two hosts, gpu1 is a spare: gpu0 does not need its vote to go on."""
    first = {"attempt": 1, "hosts": ["gpu0"], "started": MOMENT, "ended": None, "cause": None, "set_aside": []}
    agreed = {"term": 1, "version": 1, "attempts": [first], "live": True, "over": None}
    spare = node("gpu1", "failed", restart={"first": first}) | {"agreed": agreed}
    with pytest.raises(ConnectError, match="ended on gpu0 is not known: no answer; they may have continued it"):
        again(tmp_path, silent("gpu0"), answering("gpu1", spare), answering("gpu2"))


def test_a_run_that_has_lost_its_majority_is_to_be_ended_first(tmp_path: Path) -> None:
    parts = [voting("gpu0", "lost"), voting("gpu1", "lost"), voting("gpu2", "pending")]
    with pytest.raises(UsageError, match=r"1 of the run's 3 hosts left, no majority: they start no other") as refused:
        again(tmp_path, *(answering(one["host"], one) for one in parts))
    assert f"ddpctl kill {RUN}, then ddpctl restart {RUN}" in str(refused.value.hint)


def test_too_few_hosts_are_named(tmp_path: Path) -> None:
    with pytest.raises(HostsFailed, match="needs 2 hosts, and 1 can be used") as refused:
        again(tmp_path, answering("gpu0", node("gpu0")), silent("gpu1"), answering("gpu2"))
    assert refused.value.exit_code == 4
    assert set(refused.value.errors) == {"gpu1"}


def test_a_host_that_was_set_aside_for_good_is_not_used(tmp_path: Path) -> None:
    attempt = {"attempt": 1, "hosts": ["gpu0", "gpu1"], "started": MOMENT, "ended": MOMENT, "cause": None}
    attempt |= {"set_aside": [{"host": "gpu1", "why": "its GPU is broken: GPU is lost"}]}
    agreed = {"term": 1, "version": 2, "attempts": [attempt], "live": False, "over": None}
    agreed |= {"set_aside": {"gpu1": "its GPU is broken: GPU is lost"}}
    keys = {"script": "train.py", "restarts": 1, "elastic": {"min_nodes": 1, "max_nodes": 2}}
    record: dict[str, Any] = {"settings": {**SETTINGS, "keys": keys}, "restart": {"first": FIRST}}
    both = [{**node(host, **record), "agreed": agreed} for host in ("gpu0", "gpu1")]
    found = again(tmp_path, answering("gpu0", both[0]), answering("gpu1", both[1]), answering("gpu2"))
    assert found.names == ("gpu0",)
    assert found.settings is not None
    assert found.settings.hosts == ("gpu0",)


def test_records_that_differ_are_refused(tmp_path: Path) -> None:
    """The record decides which program runs on all hosts: a single host must not decide that."""
    odd = node("gpu1", settings={**SETTINGS, "keys": {"script": "other.py"}})
    with pytest.raises(DdpctlError, match="gpu1 and gpu0 have different records"):
        again(tmp_path, answering("gpu0", node("gpu0")), answering("gpu1", odd), answering("gpu2"))


def test_a_run_of_an_older_ddpctl_cannot_be_continued(tmp_path: Path) -> None:
    old = [node(host, settings=None) for host in ("gpu0", "gpu1")]
    with pytest.raises(UsageError, match="an older ddpctl started it"):
        again(tmp_path, answering("gpu0", old[0]), answering("gpu1", old[1]), answering("gpu2"))


def test_secrets_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("TOKEN=now\nOTHER=x\n")
    both = [node(host, settings={**SETTINGS, "secrets": ["TOKEN"]}) for host in ("gpu0", "gpu1")]
    hosts = (answering("gpu0", both[0]), answering("gpu1", both[1]), answering("gpu2"))
    with pytest.raises(UsageError, match="does not name TOKEN"):
        again(tmp_path, *hosts)
    found = again(tmp_path, *hosts, text=FILE.replace("args: [new]", "env_file: secrets"))
    assert dict(found.secrets) == {"TOKEN": "now"}


@pytest.mark.slow
def test_code_that_is_not_here_comes_from_a_host(tmp_path: Path) -> None:
    """Afterwards the code is here, too. If no host has the code, the error says so."""
    blob = b"an archive"
    wanted = CodeRef(hashlib.sha256(blob).hexdigest(), len(blob))
    inventory = local_inventory(tmp_path, 2)
    with fleet_of(inventory) as fleet:
        with pytest.raises(ProvisionError, match=r"the code of .* is not on n"):
            from_a_host(RUN, wanted, fleet, ["n0", "n1"], Heard())
        fleet.transport("n1").call(
            "store_put", {"hash": wanted.sha256, "size": len(blob), "offset": 0}, body=iter([blob])
        )
        path = from_a_host(RUN, wanted, fleet, ["n0", "n1"], Heard())
    assert path.read_bytes() == blob
    assert find_archive(wanted.sha256) == path
    assert [one.name for one in path.parent.iterdir()] == [path.name]
