"""The rows of ``ddpctl top``, from the answers of hosts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.console import make_console
from ddpctl.render.top import (
    HOST_COLUMNS,
    RANK_COLUMNS,
    RUN_COLUMNS,
    TopRow,
    host_rows,
    overview_view,
    rank_rows,
    run_head,
    run_rows,
    summary,
)
from ddpctl.spec.outcome import NodeStatus, RankOnHost, Straggler, StuckRun
from ddpctl.spec.restart import Settings
from ddpctl.spec.slots import Claim, ClaimOrigin
from ddpctl.spec.status import RunStatus
from ddpctl.spec.top import GpuPulse, Holder, HostView, Overview, Pulse, RankPulse
from tests.values import recorded

GB = 1_000_000_000
CLAIM = Claim(
    "node0",
    "r1",
    "bert",
    "lab",
    "exp",
    ("node0",),
    "alice",
    False,
    ClaimOrigin("a", "desk", "/x"),
    60.0,
    (0, 1),
    2,
    None,
)
RANK = Holder(41, "ada", "python train.py", "train", "r1", 0, None)
STRANGER = replace(RANK, pid=77, user="bob", command="python serve.py", job=None, run=None, rank=None)


def gpu(index: int = 0, *holders: Holder, **changes: Any) -> GpuPulse:
    words: dict[str, Any] = {
        "name": "NVIDIA H100",
        "error": None,
        "use": 97.0,
        "memory": 40 * GB,
        "memory_total": 80 * GB,
        "temperature": 71.0,
        "power_w": 350.0,
    }
    return GpuPulse(index, power_limit_w=700.0, holders=holders, **{**words, **changes})


def pulse(*gpus: GpuPulse, **changes: Any) -> Pulse:
    words: dict[str, Any] = {"load": 1.25, "cores": 8, "cpu": 35.4, "memory": 12 * GB, "memory_total": 64 * GB}
    return Pulse(gpus=gpus, **{**words, **changes})


def run(*states: str, **changes: Any) -> RunStatus:
    nodes = tuple(
        NodeStatus(f"node{number}", number, state, ranks=(number,), **changes) for number, state in enumerate(states)
    )
    return RunStatus("train", "r1", "lab", nodes, recorded(hosts=[node.host for node in nodes]))


def seen(*hosts: HostView, runs: Sequence[RunStatus] = ()) -> Overview:
    return Overview(hosts, tuple(runs))


def plain(rows: Sequence[TopRow]) -> list[list[str]]:
    return [[cell.plain for cell in row.cells] for row in rows]


def test_a_host_with_its_gpus_and_who_holds_them() -> None:
    view = HostView("node0", pulse(gpu(0, RANK), gpu(1, STRANGER), gpu(2), runs={"r1": {"0": RankPulse()}}))
    rows = host_rows(seen(view, runs=[run("running")]))
    assert plain(rows) == [
        ["node0", "1.2", "35%", "12/64G", "3: 97%", "120/240G", "71C", "1050W", "train; bob: python serve.py (pid 77)"],
        ["  gpu0 H100", "", "", "", "97%", "40/80G", "71C", "350W/700", "train rank 0"],
        ["  gpu1 H100", "", "", "", "97%", "40/80G", "71C", "350W/700", "bob: python serve.py (pid 77)"],
        ["  gpu2 H100", "", "", "", "97%", "40/80G", "71C", "350W/700", "free"],
    ]
    assert [row.key for row in rows] == ["node0", "node0/0", "node0/1", "node0/2"]


def test_many_gpus_are_folded_until_a_host_is_opened() -> None:
    hosts = [HostView(f"node{number}", pulse(*(gpu(index) for index in range(8)))) for number in range(64)]
    assert len(host_rows(seen(*hosts))) == 64
    assert [row.key for row in host_rows(seen(*hosts), {"node1"})][:4] == ["node0", "node1", "node1/0", "node1/1"]
    assert summary(seen(*hosts)).plain == "64 hosts  512 GPUs, 97% in use  0 live runs"


@pytest.mark.parametrize(
    ("view", "last"),
    [
        (HostView("node0", error="no route to host"), "no route to host"),
        (HostView("node0", pulse(late={"gpus": 14.2})), "the GPU driver has not answered for 14 s"),
        (HostView("node0", pulse(late={"runs": 8.0})), "the disk has not answered for 8 s"),
        (HostView("node0", pulse(errors={"runs": "OSError('x')"})), "the runs cannot be read: OSError('x')"),
        (HostView("node0", pulse(errors={"claims": "x"})), "the runs of other accounts cannot be read: x"),
        (HostView("node0", pulse(gpu_error="NVML: Driver not loaded")), "NVML: Driver not loaded"),
        (HostView("node0", pulse(gpu(0, Holder(9, None, None, None, None, None, None)))), "pid 9, not seen from here"),
    ],
)
def test_what_is_wrong_with_a_host_is_in_its_row(view: HostView, last: str) -> None:
    assert plain(host_rows(seen(view)))[0][-1] == last


def test_what_is_not_known_is_not_a_number() -> None:
    lost = gpu(0, use=None, memory=None, temperature=None, power_w=None, error="NVML: GPU is lost")
    late = Pulse(None, 8, None, 0, 0, None, late={"gpus": 7.0})
    rows = plain(host_rows(seen(HostView("node0", pulse(lost)), HostView("node1", late))))
    assert rows[0][4:8] == ["1: unknown", "-", "-", "-"]
    assert rows[1][4:] == ["unknown", "-", "-", "-/700", "NVML: GPU is lost"]
    assert rows[2][1:5] == ["-", "-", "-", "unknown"]


def test_runs_of_other_accounts_are_rows_with_what_their_claims_show() -> None:
    waiting = replace(CLAIM, account="bob", slots=(), place=2)
    same_run = [replace(CLAIM, host="node1", slots=(0,)), replace(waiting, host="node1")]
    views = [HostView("node0", pulse(claims=(CLAIM, waiting))), HostView("node1", pulse(claims=tuple(same_run)))]
    full = seen(*views, runs=[replace(run("running"), run="r0")])
    rows = run_rows(full)
    assert plain(rows)[1:] == [
        ["bert", "queued 2", "2", "-", "-", "1m ago", "r1", "account bob"],
        ["bert", "running", "2", "-", "-", "1m ago", "r1", "account alice, slots node0:0-1 node1:0"],
    ]
    assert len({row.key for row in rows}) == 3
    assert [row[-1] for row in plain(host_rows(full))] == ["alice: run bert"] * 2
    assert summary(full).plain == "2 hosts  1 live run, 2 of other accounts"


def test_a_run_shows_the_arguments_in_which_it_differs() -> None:
    def started(name: str, rate: str) -> RunStatus:
        one = replace(run("running"), run=name)
        keys = {"script": "train.py", "args": ["--epochs", "3", "--lr", rate]}
        return replace(one, record=replace(one.record, settings=Settings("train", keys, ("node0",), 1)))

    low, high = started("r1", "0.1"), started("r2", "0.3")
    both = seen(runs=[low, high])
    assert [row[-1] for row in plain(run_rows(both))] == ["--lr 0.1", "--lr 0.3"]
    assert run_head(both, high).plain.endswith("\n--lr 0.3")
    assert plain(run_rows(seen(runs=[low])))[0][-1] == ""


def test_a_run_while_its_nodes_join() -> None:
    one = run("running", "starting", "starting")
    assert plain(run_rows(seen(runs=[one])))[0][:3] == ["train", "starting", "1 of 3"]
    assert "1 of 3 nodes have joined" in run_head(seen(runs=[one]), one).plain


def test_a_row_a_rank() -> None:
    slow = (Straggler("node1", 1, 22.0, 0.94),)
    told = {"slow": tuple(slow), "reported": "2026-01-01T00:00:00Z"}
    one = run("running", "running", **told)
    ranks = {"0": RankPulse(41, "running", 99.6, 512.4, 3.2, {"step": 120, "samples_per_s": 5120.4})}
    views = (
        HostView("node0", pulse(gpu(0), gpu(1, RANK), runs={"r1": ranks})),
        HostView("node1", pulse(late={"runs": 9.0}, runs={"r1": {"1": RankPulse(42, "sleeping")}})),
    )
    rows = plain(rank_rows(seen(*views, runs=[one]), one))
    assert rows[0] == ["0", "node0", "41", "running", "100%", "512MB", "1: 97%", "120", "5120", "3s", ""]
    assert rows[1][3] == "unknown"
    assert rows[1][-1] == "slow: last in 94% of steps, 22.0 ms"
    assert plain(run_rows(seen(*views, runs=[one])))[0][3:5] == ["120", "5120"]


def test_a_run_without_metrics_shows_the_values_in_its_output() -> None:
    one = run("running", "running", started="2026-01-01T00:00:00Z")
    ranks = {rank: RankPulse(printed={"step": step, "loss": 0.43}) for rank, step in (("1", 31.0), ("0", 30.0))}
    full = seen(HostView("node0", pulse(runs={"r1": ranks})), runs=[one])
    assert plain(run_rows(full))[0][3:5] == ["30", "-"]
    assert "step 30  loss 0.43  (read from the output)" in run_head(full, one).plain


def test_a_suspect_is_named_in_its_row() -> None:
    stuck = StuckRun(
        "rank 1 is asleep", (RankOnHost("node1", 1),), since="2026-01-01T00:00:00Z", time="2026-01-01T00:01:00Z"
    )
    one = run("running", "running", diagnosis=stuck, reported="2026-01-01T00:01:00Z")
    rows = plain(rank_rows(seen(runs=[one]), one))
    assert [row[-1] for row in rows] == ["", "the others wait for it"]
    assert "rank 1 is asleep" in run_head(seen(runs=[one]), one).plain


def test_an_unreachable_node_is_named() -> None:
    one = run("running", "unreachable")
    assert plain(run_rows(seen(runs=[one])))[0][-1] == "node1 is unreachable"
    assert plain(rank_rows(seen(runs=[one]), one))[1][3] == "unreachable"


@given(st.text(), st.text())
def test_no_text_of_a_node_steers_the_terminal_or_makes_a_line(command: str, error: str) -> None:
    views = (
        HostView(
            "node0",
            pulse(gpu(0, replace(STRANGER, user="u\x1b[2J", command=command), error=error or None), gpu_error=error),
        ),
        HostView("node1", error=error),
    )
    rows = host_rows(seen(*views))
    assert not any(letter in cell.plain for row in rows for cell in row.cells for letter in "\x1b\n\r\x07\u202e")
    assert all(len(row.cells) == len(HOST_COLUMNS) for row in rows)


def test_every_row_has_all_columns() -> None:
    one = run("running")
    assert len(run_rows(seen(runs=[one]))[0].cells) == len(RUN_COLUMNS)
    assert len(rank_rows(seen(runs=[one]), one)[0].cells) == len(RANK_COLUMNS)


def test_the_page_for_a_pipe() -> None:
    out = io.StringIO()
    view = HostView("node0", pulse(gpu(0, RANK), runs={"r1": {"0": RankPulse()}}))
    make_console(out).print(overview_view(seen(view, HostView("node1", error="no route"), runs=[run("running")])))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "2 hosts, 1 without an answer (node1)  1 GPU, 97% in use  1 live run"
    assert [line.split()[0] for line in lines[2:6]] == ["HOST", "node0", "gpu0", "node1"]
    assert lines[-1].split()[:3] == ["train", "running", "1"]
