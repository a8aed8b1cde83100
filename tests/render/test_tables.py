"""Tables keep every word on any terminal: a run id that is cut off cannot be typed."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import RenderableType

from ddpctl.render.console import make_console
from ddpctl.render.status import (
    age_text,
    attempt_line,
    duration_text,
    end_line,
    kill_view,
    plan_view,
    runs_table,
    saved_view,
    status_view,
    strangers_line,
    unfinished_line,
    untracked_lines,
)
from ddpctl.spec.kill import KillOutcome, SavedOutcome, StoppedNode
from ddpctl.spec.origin import Origin
from ddpctl.spec.outcome import Attempt, Cause, NodeStatus, RankOnHost, Strangers, StuckRun, UnfinishedFile, Untracked
from ddpctl.spec.record import RecordedRun
from ddpctl.spec.restart import Settings
from ddpctl.spec.slots import Claim, ClaimOrigin, other_runs
from ddpctl.spec.status import RunStatus
from tests.spec import test_planning
from tests.values import recorded

RUN = "20261121T053028Z-318ccc"
HOSTS = [f"rack7-machine{number:03}" for number in range(64)]
NODES = tuple(NodeStatus(host, rank, "succeeded", pid=123456, exit_code=0) for rank, host in enumerate(HOSTS))
STATUS = RunStatus("a-job-with-quite-a-long-name", RUN, "laboratory", NODES, recorded())
KILLED = KillOutcome(STATUS.job, RUN, "killed", 1.0, tuple(StoppedNode(host, 2, 1) for host in HOSTS))


def test_a_spare_has_no_command_in_a_plan_yet() -> None:
    plan = test_planning.plan({"nproc_per_node": 2, "restarts": 1}, test_planning.hosts(3), spares=1)
    out = io.StringIO()
    make_console(out).print(plan_view(plan))
    said = out.getvalue()
    assert "node1  node rank 1\n" in said
    assert "node2  spare: it takes the place of a host that is lost\n" in said
    assert "--node_rank 2" not in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_nothing_is_cut_off(columns: int, stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = stream()
    for view in (status_view(STATUS), kill_view(KILLED)):
        make_console(out).print(view)
    said = out.getvalue()
    assert "…" not in said
    assert said.count(RUN) == 2
    assert said.count(HOSTS[-1]) == 2
    assert "NODE RANK" in said


def of(job: str, hosts: list[str], user: str = "root", state: str = "succeeded") -> RunStatus:
    """A run that started 200 minutes ago and, if it has ended, did so 20 minutes later."""
    start = datetime.now(timezone.utc) - timedelta(minutes=200)
    end = None if state == "running" else (start + timedelta(minutes=20)).isoformat()
    nodes = tuple(
        NodeStatus(host, rank, state, pid=1234567, ranks=(rank,), started=start.isoformat(), ended=end)
        for rank, host in enumerate(hosts)
    )
    return RunStatus(job, RUN, "lab", nodes, RecordedRun("exp", Origin(user, "desk", "/home", 1)))


def printed(
    view: RenderableType, columns: int, monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO] = Terminal
) -> list[str]:
    """Its lines, without colours."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = stream()
    make_console(out).print(view)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()]


def runs() -> list[RunStatus]:
    """Return runs with times relative to now: a text such as "3h ago" must not depend on the time of other tests."""
    return [of("resnet_ddp", ["node0", "node1", "node2", "node3"]), of("a" * 40, HOSTS, "a-long-user", "running")]


@pytest.mark.parametrize("columns", [20, 76, 80, 90])
def test_ps_fits_a_terminal_and_never_shortens_a_run_id(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(runs_table(runs(), "exp"), columns, monkeypatch)
    assert len(lines) == 3
    assert max(map(len, lines)) <= max(columns, 76)
    assert all(RUN in line for line in lines[1:])
    narrow = ["JOB", "RUN", "STATE", "STARTED", "TIME", "HOSTS", "USER"]
    assert lines[0].split() == narrow, "a narrow terminal has no room for another column: see no_room in runs_table"
    assert lines[1].endswith("succeeded  3h ago   20m00s  4      root")
    assert lines[2].startswith("aaaaa")
    assert lines[2].endswith("running    3h ago   3h20m   64     a-long-…")


def test_ps_leaves_out_a_user_who_started_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(runs_table(runs()[:1] * 2, "exp"), 76, monkeypatch)
    assert lines[0].split()[-1] == "HOSTS"
    assert lines[1].startswith("resnet_ddp  20261121T")
    assert lines[1].endswith("node[0-3]")


@pytest.mark.parametrize(("stream", "columns"), [(io.StringIO, 40), (Terminal, 160)])
def test_ps_shortens_nothing_in_a_pipe_or_where_there_is_room(
    stream: type[io.StringIO], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(runs_table(runs(), "exp"), columns, monkeypatch, stream)
    assert lines[0].split()[-2:] == ["USER", "CLUSTER"]
    assert lines[2].split()[0] == "a" * 40
    assert lines[2].endswith("rack7-machine[000-063]  a-long-user  lab")


@pytest.mark.parametrize("state", ["succeeded", "running"])
def test_status_fits_80_columns(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(status_view(of("resnet_ddp", ["gpu-node-001", "gpu-node-002"], state=state)), 80, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"resnet_ddp  {state}  run {RUN}  world size 2"
    assert lines[1] == "cluster lab  project exp  started 3h ago" + (
        "  ended 3h ago, after 20m00s" if state == "succeeded" else ""
    )
    assert lines[2].startswith("HOST ")


def test_status_names_the_script_and_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    run = of("train", ["node0"])
    keys = {"script": "train.py", "args": ["--lr", "0.3", "--api_key", "hunter22"]}
    node = replace(run.nodes[0], printed={"step": 120.0, "loss": 0.43})
    seen = replace(run, nodes=(node,), record=replace(run.record, settings=Settings("train", keys, ("node0",), 1)))
    lines = printed(status_view(seen), 80, monkeypatch)
    assert lines[2] == "runs train.py --lr 0.3 --api_key '********'"
    assert "step 120  loss 0.43  (read from the output)" in lines


def test_ps_shows_the_arguments_in_which_runs_of_a_program_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(job: str, run: str, *args: str, script: str = "train.py") -> RunStatus:
        one = replace(of(job, ["node0"]), run=run)
        keys = {"script": script, "args": args}
        return replace(one, record=replace(one.record, settings=Settings(job, keys, ("node0",), 1)))

    seen = [
        started("train", "r1", "--epochs", "3", "--lr", "0.3"),
        started("lr-low", "r2", "--epochs", "3", "--lr", "0.1", "--fp16", "data set"),
        started("eval", "r3", "--lr", "7", script="eval.py"),
    ]
    lines = printed(runs_table(seen, "exp"), 200, monkeypatch)
    assert lines[-2:] == ["r2 lr-low: --lr 0.1 --fp16 'data set'", "r1 train: --lr 0.3"]
    assert not any("--lr" in line for line in printed(runs_table(seen[1:], "exp"), 200, monkeypatch))


def test_the_next_step_stands_directly_below_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    run = of("train", ["node0"], state="failed")
    said = "rank 0 exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: 'saved/best.pt'"
    cause = Cause("node0", "exited", said, run.nodes[0].started or "", rank=0, traceback="Traceback: line")
    failed = replace(run, nodes=(replace(run.nodes[0], cause=cause),), writer="r1")
    lines = printed(status_view(failed), 200, monkeypatch)
    at = lines.index(f"node0 rank 0: exited: {said}")
    assert lines[at + 1].startswith("hint: run r1 wrote saved/best.pt, but")
    assert lines[at + 2] == "Traceback: line"
    assert not any(line.startswith("hint: ") for line in printed(status_view(failed, hint=False), 200, monkeypatch))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (59.4, "59s"), (60, "1m00s"), (7325, "2h02m"), (86399, "23h59m"), (3 * 86400 + 7200, "3d02h")],
)
def test_how_long_a_run_took(seconds: float, text: str) -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    end = start + timedelta(seconds=seconds)
    assert duration_text(start.isoformat(), end.isoformat(), live=False) == text
    assert duration_text(start.isoformat(), None, live=True, now=end) == text
    assert duration_text(start.isoformat(), None, live=False) == duration_text(None, None, live=True) == "-"


def test_a_host_that_answers_and_is_unreachable_says_why() -> None:
    out = io.StringIO()
    node = NodeStatus("a", 0, "unreachable", note="it is another machine")
    make_console(out).print(status_view(RunStatus("job", RUN, "lab", (node,), recorded())))
    assert "a: it is another machine" in out.getvalue()


def test_of_a_live_run_with_restarts_the_lost_hosts_are_told_and_what_uses_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = of("train", ["node0", "node1", "node2"], state="running")
    run = replace(
        live,
        record=recorded(restart={}),
        nodes=(*live.nodes[:2], replace(live.nodes[2], state="lost")),
    )
    again = "takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again"
    said = printed(status_view(run), 200, monkeypatch)
    assert f"node2 is lost: it {again}" in said
    assert not any("majority" in line for line in said)
    fewer = replace(run, nodes=(live.nodes[0], *(replace(one, state="lost") for one in live.nodes[1:])))
    end = f"ddpctl kill {RUN}, then ddpctl restart {RUN}"
    assert any(end in line for line in printed(status_view(fewer), 300, monkeypatch))
    ended = replace(run, nodes=tuple(replace(one, state="lost") for one in live.nodes))
    assert not any(again in line for line in printed(status_view(ended), 200, monkeypatch))


def test_a_node_that_an_elastic_run_does_without_is_shown() -> None:
    cause = Cause("c", "signaled", "the launcher was killed by SIGKILL", "t1")
    out = io.StringIO()
    nodes = (*(NodeStatus(host, 0, "running") for host in "ab"), NodeStatus("c", 2, "failed", cause=cause))
    make_console(out).print(status_view(RunStatus("job", RUN, "lab", nodes, recorded(min_nodes=2))))
    assert "c takes part no more: c: signaled: the launcher was killed by SIGKILL" in out.getvalue()


def test_what_else_may_have_been_the_cause_is_shown_on_request() -> None:
    first = Cause("a", "exited", "rank 1 exited with code 1", "t1", rank=1)
    other = Cause("b", "signaled", "rank 2 was killed by SIGABRT", "t2", rank=2)
    node = NodeStatus("a", 0, "failed", cause=first, candidates=(other,))
    for candidates in (False, True):
        out = io.StringIO()
        make_console(out).print(status_view(RunStatus("job", RUN, "lab", (node,), recorded()), candidates=candidates))
        assert "rank 1 exited with code 1" in out.getvalue()
        assert ("b rank 2: signaled: rank 2 was killed by SIGABRT" in out.getvalue()) == candidates


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7300, "2h ago"), (3 * 86400 + 5, "3d ago")],
)
def test_a_time_in_a_table_says_how_long_ago_it_was(seconds: int, text: str) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    assert age_text((now - timedelta(seconds=seconds)).isoformat(), now) == text
    assert age_text((now - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z"), now) == text
    assert age_text(None, now) == "-"


@pytest.mark.parametrize("time", ["a", "", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00"])
def test_a_time_that_a_spoilt_record_has_is_as_good_as_none(time: str) -> None:
    assert age_text(time) == "-"


@pytest.mark.parametrize(("step", "said"), [(120, "(step 120, 3.2 MB)"), (None, "(3.2 MB)")])
def test_a_checkpoint_with_its_step_and_hosts(step: int | None, said: str) -> None:
    out = io.StringIO()
    make_console(out).print(saved_view(SavedOutcome("train", RUN, "ckpt.pt", step, 3_200_000, ("n0", "n1"), 4.06)))
    assert out.getvalue() == f"train  saved ckpt.pt {said} on n0,n1  4.1s\n"


def test_an_attempt_without_a_cause_has_just_ended() -> None:
    assert attempt_line(Attempt(2, ("node0",), ended="2026-01-01T00:00:00+00:00")).endswith(": ended")


@pytest.mark.parametrize(("suspect", "again"), [(1, False), (0, True)])
def test_the_last_line_says_what_was_stuck(suspect: int, again: bool) -> None:
    """Where the cause is that same rank, it says so already."""
    one = of("train", ["node0"], state="failed")
    verdict = f"1 of 2 ranks waits; rank {suspect} on node0 is at train.py:3"
    started = one.verdict.started or ""
    diagnosis = StuckRun(verdict, (RankOnHost("node0", suspect),), since=started, time=started)
    cause = Cause("node0", "exited", "boom", started, rank=1)
    run = replace(one, nodes=(replace(one.nodes[0], diagnosis=diagnosis, reported=one.verdict.started, cause=cause),))
    told = "; it was stuck for 20m00s when it ended: " + verdict
    assert end_line(run) == "node0 rank 1: exited: boom" + (told if again else "")


@pytest.mark.parametrize(
    ("state", "words"), [("running", "stuck for 3h: 1 of 2"), ("killed", "was stuck for 5m00s when it ended: 1 of 2")]
)
def test_an_ended_run_is_stuck_no_longer(state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended three hours ago, after the last five of its twenty minutes were spent waiting."""
    one = of("train", ["node0"], state=state)
    since = datetime.fromisoformat(one.verdict.started or "") + timedelta(minutes=15)
    diagnosis = StuckRun("1 of 2 ranks waits", (), since=since.isoformat(), time=since.isoformat())
    run = replace(one, nodes=(replace(one.nodes[0], diagnosis=diagnosis, reported=since.isoformat()),))
    for view in (status_view(run), runs_table([run], "exp")):
        assert any(line.removeprefix("train: ").startswith(words) for line in printed(view, 200, monkeypatch))


def test_unfinished_files_take_one_line() -> None:
    cut = (UnfinishedFile("step_2.pt", 31_500_000),)
    nodes = (NodeStatus("node0", 0, "killed", unfinished=cut), NodeStatus("node1", 1, "killed"))
    status = RunStatus("train", RUN, "lab", nodes, recorded())
    assert unfinished_line(status) == "cut off while it was saved: step_2.pt on node0 (31.5 MB)"
    both = replace(status, nodes=(nodes[0], replace(nodes[1], unfinished=(UnfinishedFile("a/b.bin", 7),))))
    text = "cut off while they were saved: step_2.pt on node0 (31.5 MB), a/b.bin on node1 (7 B)"
    assert unfinished_line(both) == text
    out = io.StringIO()
    make_console(out).print(status_view(both))
    assert text in out.getvalue()


def test_strangers_take_one_line() -> None:
    last = "2026-01-01T00:00:58+00:00"
    first = Strangers(4000, 4, {"10.0.0.9": 3900}, last)
    second = Strangers(210, 1, {"10.0.0.9": 210}, last)
    nodes = [NodeStatus("node0", 0, "running", strangers=first), NodeStatus("node1", 1, "running", strangers=second)]
    now = datetime(2026, 1, 1, 0, 1, 0, tzinfo=timezone.utc)
    assert strangers_line(nodes, now) == (
        "4,210 connections by strangers from 10.0.0.9 and 3 other addresses to node0,node1, the last 2s ago: "
        "they were closed, and the run is not harmed"
    )
    assert strangers_line(nodes[1:], now).startswith("210 connections by strangers from 10.0.0.9 to node1, ")


def test_a_host_without_a_keeper_of_checkpoints_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of("train", ["node0", "node1"])
    since = (datetime.now(timezone.utc) - timedelta(minutes=5)).isoformat()
    run = replace(one, nodes=(one.nodes[0], replace(one.nodes[1], keeper_ended=since)))
    (line,) = (line for line in printed(status_view(run), 200, monkeypatch) if "keeper" in line)
    after = "a checkpoint after that has no manifest and no copies until the job is started again"
    assert line == f"node1: the keeper of checkpoints ended 5m ago: {after}"
    assert not any("keeper" in line for line in printed(status_view(one), 200, monkeypatch))


def test_ps_shows_projects_where_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (90, 160):
        lines = printed(runs_table(runs()[:1], "another"), columns, monkeypatch)
        assert lines[0].split()[:3] == ["JOB", "PROJECT", "RUN"]
        assert lines[1].split()[:3] == ["resnet_ddp", "exp", RUN]


def test_ps_shows_the_runs_of_other_accounts_in_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = ClaimOrigin("alice", "desk", "/home/alice/exp1")
    claim = Claim("node3", "r1", "bert", "lab", "exp", ("node3",), "alice", False, origin, 60.0, (0, 1), 2, None)
    others = other_runs([claim], own=())
    for columns in (90, 160):
        head, *rows = printed(runs_table(runs()[:1], "exp", others), columns, monkeypatch)
        shown = head.split()
        assert {"JOB", "RUN", "STATE", "HOSTS", "USER"} <= set(shown)
        (row,) = (line.split() for line in rows if "bert" in line)
        assert len(row) >= len(shown)
        assert {"bert", "r1", "running", "alice"} <= set(row)


def test_a_kill_of_a_run_that_was_over_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (StoppedNode("a", 0, 0),)
    over = KillOutcome("train", RUN, "succeeded", 0.2, nodes)
    assert "it was over already" in printed(kill_view(over), 100, monkeypatch)[0]
    assert "over" not in printed(kill_view(replace(over, state="killed")), 100, monkeypatch)[0]


def test_untracked_files_are_a_line_a_host() -> None:
    found = [
        Untracked("a", "/w", 5, 99, (("best.pth", 15_000), ("log", 80)), whole=False),
        Untracked("b", error="late"),
    ]
    found += [Untracked(f"c{number}", "/w", 1, 1, (("x", 1),)) for number in range(4)]
    assert untracked_lines("R", found) == [
        "a: at least 5 files that no output covers stay on the node: best.pth (15.0 kB), log (80 B) and 3 more, in /w",
        "b: whether files that no output covers stay there is not known: late",
        "c0: 1 file that no output covers stays on the node: x (1 B), in /w",
        "c1: 1 file that no output covers stays on the node: x (1 B), in /w",
        "... and such files on c2,c3",
        "to bring one: ddpctl fetch R --output best.pth; of later runs: `outputs: [best.pth]`",
    ]
