"""The screen without a terminal: the effect of each key, on 80 columns and 24 rows, whatever the hosts do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from rich.text import Text
from textual.events import Key
from textual.pilot import Pilot

from ddpctl.errors import HostsFailed, Unreachable
from ddpctl.screen import app as module
from ddpctl.screen.app import Actions, TopApp
from ddpctl.screen.parts import Rows
from ddpctl.spec.event import Event, Line
from ddpctl.spec.lines import Group
from ddpctl.spec.outcome import NodeStatus
from ddpctl.spec.slots import Claim, ClaimOrigin
from ddpctl.spec.status import RunStatus
from ddpctl.spec.top import GpuPulse, HostView, Overview, Pulse, RankPulse
from tests.values import recorded

pytestmark = pytest.mark.slow
Play = Callable[[Pilot[None]], Awaitable[None]]


def run(name: str, state: str = "running") -> RunStatus:
    nodes = tuple(NodeStatus(f"node{number}", number, state, ranks=(number,)) for number in range(2))
    return RunStatus(name, f"run-{name}", "lab", nodes, recorded(hosts=["node0", "node1"]))


def gpu(index: int, name: str, use: float | None = None) -> GpuPulse:
    return GpuPulse(index, name, use, None, None, None, None, None, (), None)


def host(number: int, use: float = 97.0, gpus: int = 8) -> HostView:
    cards = tuple(gpu(index, "NVIDIA H100", use) for index in range(gpus))
    ranks = {"run-train": {str(number): RankPulse(40 + number, "running")}} if number < 2 else {}
    return HostView(f"node{number}", Pulse(0.5, 8, 10.0, 1, 2, cards, runs=ranks))


@dataclass
class Cluster:
    """What the hosts would say, and what was done to them."""

    seen: Overview = field(default_factory=lambda: Overview((host(0), host(1)), (run("train"), run("eval"))))
    killed: list[str] = field(default_factory=list)
    answer: threading.Event = field(default_factory=threading.Event)  # of the doctor

    def doctor(self, name: str) -> Text:
        self.answer.wait(120)
        return Text(f"{name} is stuck \x1b[2J: " + "a long sentence " * 8)

    def stacks(self, name: str, rank: int) -> Text:
        raise HostsFailed("no host answered", {"node0": Unreachable("no route", host="node0")})

    def log(
        self,
        one: RunStatus,
        tell: Callable[[Event], None],
        show: Callable[[Sequence[Group]], None],
        stop: Callable[[], bool],
    ) -> None:
        show([[Line("node0", number, "stdout", number, f"line {number} \x1b[31m")] for number in range(3)])

    def kill(self, one: RunStatus) -> Text:
        self.killed.append(one.run)
        return Text("nothing of it is left")

    def actions(self, readonly: bool = False) -> Actions:
        kill = None if readonly else self.kill
        return Actions(lambda: self.seen, self.doctor, self.stacks, self.log, kill)


def play(cluster: Cluster, steps: Play, *, inside: str | None = None, readonly: bool = False) -> None:
    async def on_screen() -> None:
        app = TopApp(cluster.actions(readonly), inside)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, "running")
            await steps(pilot)

    asyncio.run(on_screen())


def text(pilot: Pilot[None]) -> str:
    """The readable text of the top screen."""
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join(line.text.rstrip() for line in lines)


async def until(pilot: Pilot[None], *wanted: str, without: str = "\0") -> str:
    for _ in range(3000):
        await pilot.pause(0.02)
        shown = text(pilot)
        if all(one in shown for one in wanted) and without not in shown:
            return shown
    raise AssertionError(f"no {wanted}:\n{text(pilot)}")


def test_hosts_and_runs_on_a_small_terminal() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        shown = (await until(pilot, "2 live runs", "gpu7", "train", "k kill")).splitlines()
        assert shown[0] == "2 hosts  16 GPUs, 97% in use  2 live runs"
        assert shown[-1].startswith("Enter open  Esc back  / filter  d doctor  s stacks  k kill  ? help  q quit")
        assert max(map(len, shown)) <= 80

    play(Cluster(), steps)


def test_a_fault_in_an_overview_ends_the_screen_instead_of_freezing_it() -> None:
    cluster, fails = Cluster(), threading.Event()

    def overview() -> Overview:
        if fails.is_set():
            raise ValueError("a bug")
        return cluster.seen

    async def on_screen() -> None:
        app = TopApp(replace(cluster.actions(), overview=overview))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, "running")
            fails.set()
            while app.is_running and app.fault is None:
                await asyncio.sleep(0.05)
        assert isinstance(app.fault, ValueError)

    asyncio.run(on_screen())


def test_many_hosts_are_a_row_each_and_enter_opens_one() -> None:
    cluster = Cluster()
    cluster.seen = replace(cluster.seen, hosts=tuple(host(number) for number in range(64)))

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "64 hosts  512 GPUs", without="gpu0")
        await pilot.press("tab", "down", "enter")
        shown = await until(pilot, "gpu7")
        assert shown.index("node1 ") < shown.index("gpu0") < shown.index("node2 ")
        await pilot.press("enter")
        await until(pilot, "node2", without="gpu0")

    play(cluster, steps)


def test_a_host_with_two_gpus_of_one_number_does_not_end_the_screen() -> None:
    twice = HostView("node0", Pulse(0.5, 8, 10.0, 1, 2, (gpu(0, "one"), gpu(0, "two"))))

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "gpu0 one", "gpu0 two")

    play(Cluster(Overview((twice,), (run("train", "running"),))), steps)


def test_the_cursor_stays_on_its_row_and_leaves_the_table_at_its_end() -> None:
    cluster = Cluster()

    async def steps(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one("#runs", Rows)
        await pilot.press("down")
        assert table.chosen == "run-eval"
        cluster.seen = replace(cluster.seen, runs=(run("newer"), *cluster.seen.runs))
        pilot.app.look()  # type: ignore[attr-defined]
        await until(pilot, "newer")
        assert table.chosen == "run-eval"
        await pilot.press("down")
        assert pilot.app.focused is pilot.app.screen.query_one("#hosts")
        await pilot.press("up")
        assert pilot.app.focused is table

    play(cluster, steps)


def test_the_filter() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"eval")
        await until(pilot, "eval", without="train")
        await pilot.press("enter", "d")  # the field is left: a key is a key again
        await until(pilot, "doctor of eval ...")
        await pilot.press("escape")
        await until(pilot, "train")

    cluster = Cluster()
    play(cluster, steps)
    cluster.answer.set()


def test_what_is_typed_right_after_the_slash_is_for_the_filter() -> None:
    """A fast typist must not open the doctor, or ask for a kill."""

    async def steps(pilot: Pilot[None]) -> None:
        for key, letter in (("slash", "/"), ("d", "d"), ("k", "k"), ("slash", "/")):
            pilot.app.post_message(Key(key, letter))
        await until(pilot, "dk/", without="doctor of")
        await pilot.press("escape")
        await until(pilot, "train", without="Kill")

    play(Cluster(), steps)


def test_nothing_waits_for_a_doctor_that_hangs() -> None:
    cluster = Cluster()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("d")
        await until(pilot, "doctor of train ...")
        cluster.seen = replace(cluster.seen, hosts=(host(0, 11.0), host(1, 11.0)))
        pilot.app.look()  # type: ignore[attr-defined]
        await until(pilot, "11% in use")
        cluster.answer.set()
        shown = await until(pilot, "run-train is stuck \\x1b[2J: a long")  # shown, not obeyed
        assert shown.count("long sentence") + shown.count("long") > 8  # to its end, on several lines
        await pilot.press("escape")
        await until(pilot, "2 hosts", without="is stuck")

    play(cluster, steps)


def test_inside_a_run_and_back() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        shown = await until(pilot, "train  running  run run-train", "RANK", "line 2 \\x1b[31m")
        assert "node0:0 | line 0" in shown
        await pilot.press("slash", *"line 1")
        await until(pilot, "line 1", without="line 2")
        await pilot.press("escape")
        await until(pilot, "line 2")
        await pilot.press("escape")
        await until(pilot, "2 hosts")

    play(Cluster(), steps)


def test_a_progress_bar_leaves_room_for_other_lines() -> None:
    """As in `tail`: a line a second at most."""
    cluster = Cluster()

    def log(_one: RunStatus, _tell: object, show: Callable[[Sequence[Group]], None], _stop: object) -> None:
        bars = [Line("node0", 0, "stdout", number / 100, f"{number}%", "\r") for number in range(100)]
        show([[line] for line in (Line("node0", 0, "stdout", 0.0, "epoch 1"), *bars)])

    cluster.log = log  # type: ignore[method-assign, assignment]

    async def steps(pilot: Pilot[None]) -> None:
        shown = await until(pilot, "epoch 1", "| 0%")
        assert "| 99%" not in shown

    play(cluster, steps, inside="run-train")


def test_an_error_of_an_action_is_a_page_that_can_be_closed() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "RANK")
        await pilot.press("s")
        await until(pilot, "stack of rank 0", "no host answered")
        await pilot.press("escape")
        await until(pilot, "RANK", without="no host answered")

    play(Cluster(), steps, inside="run-train")


def test_kill_asks_first() -> None:
    cluster = Cluster()

    async def steps(pilot: Pilot[None]) -> None:
        for key in ("n", "x", "escape"):
            await pilot.press("k")
            await until(pilot, "Kill train, run run-train, on node0, node1?")
            await pilot.press(key)
            if key == "x":  # neither yes nor no
                await until(pilot, "Kill train")
                await pilot.press("n")
            await until(pilot, "nothing was killed")
        assert cluster.killed == []
        await pilot.press("k")
        await until(pilot, "Kill train")
        await pilot.press("y")
        await until(pilot, "nothing of it is left")

    play(cluster, steps)
    assert cluster.killed == ["run-train"]


def test_a_run_of_another_account_can_neither_be_opened_nor_killed() -> None:
    origin = ClaimOrigin("alice", "desk", "/x")
    claim = Claim("node0", "r9", "bert", "lab", "exp", ("node0",), "alice", False, origin, 60.0, (0,), 1, None)
    first = host(0)
    assert first.pulse
    cluster = Cluster()
    cluster.seen = replace(cluster.seen, hosts=(replace(first, pulse=replace(first.pulse, claims=(claim,))), host(1)))

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "bert", "account alice", "2 live runs, 1 of other accounts")
        await pilot.press("down", "down")
        for key in ("k", "d", "enter"):
            await pilot.press(key)
            await until(pilot, "a run of alice: no other account may look into it or end it", "2 hosts")
        await pilot.press("up", "enter")
        await until(pilot, "run-eval", without="2 hosts")

    play(cluster, steps)
    assert cluster.killed == []


def test_readonly_has_no_key_that_kills() -> None:
    cluster = Cluster()

    async def steps(pilot: Pilot[None]) -> None:
        assert "kill" not in text(pilot)
        await pilot.press("k")
        await until(pilot, "--readonly", without="Kill train")
        await pilot.press("question_mark")
        await until(pilot, "quit; no run is touched", without="kill the run")

    play(cluster, steps, readonly=True)
    assert cluster.killed == []


def test_a_run_that_is_over_is_not_killed() -> None:
    cluster = Cluster(Overview((host(0), host(1)), (run("train", "failed"), run("eval"))))

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("k")
        await until(pilot, "train is over: failed")

    play(cluster, steps)


def test_a_run_that_is_gone_is_said_to_be() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(pilot, "RANK")
        cluster.seen = replace(cluster.seen, runs=())
        pilot.app.look()  # type: ignore[attr-defined]
        await until(pilot, "no host that answers knows it")

    cluster = Cluster()
    play(cluster, steps)


def test_nothing_is_drawn_where_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repaint is at most every two seconds, and of what is new."""
    assert module.EVERY_S == 2.0
    drawn: list[object] = []
    update = Rows.update_cell

    def counted(table: Rows, row: str, *cell: Any, **how: Any) -> None:
        drawn.append(row)
        update(table, row, *cell, **how)

    monkeypatch.setattr(Rows, "update_cell", counted)
    monkeypatch.setattr(module, "EVERY_S", 3600.0)

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "8: 97%")
        drawn.clear()
        pilot.app.look()  # type: ignore[attr-defined]
        await pilot.pause(0.2)
        assert drawn == []
        cluster.seen = replace(cluster.seen, hosts=(host(0, 11.0), host(1)))
        pilot.app.look()  # type: ignore[attr-defined]
        await until(pilot, "8: 11%")
        assert drawn == ["node0", *(f"node0/{index}" for index in range(8))]

    cluster = Cluster()
    play(cluster, steps)
