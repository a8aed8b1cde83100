"""Properties that hold for any looks that a node may send: as random as their shape allows."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.console import make_console
from ddpctl.render.doctor import doctor_view
from ddpctl.spec.doctor import DoctorReport
from ddpctl.transport import answers
from ddpctl_worker.rules.limits import BUSY_FACTOR, MOVING_FACTOR, STALL_S
from ddpctl_worker.rules.verdict import diagnose
from tests.examples import few
from tests.worker.looks import AUTOGRAD, C10D, LOADER, LOOP, MAIN, NOW, READ, STEP, Look, behind, group, look, waits_in

FRAMES = [STEP, MAIN, READ, [C10D, 1, "all_reduce"], [C10D, 2, "recv"], [LOADER, 3, "_next_data"], [AUTOGRAD, 4, "x"]]
FIGURE = st.floats(-1e300, 1e300) | st.integers(-10, 1 << 60) | st.sampled_from([0, 5.0, 90.0])
TEXT = st.text(max_size=6) | st.sampled_from(["\x1b[2J", "[red]", "\udcff", "%s", "\n"])
STACK = st.lists(st.sampled_from(FRAMES) | st.tuples(TEXT, st.integers(-9, 1 << 40), TEXT).map(list), max_size=4)
OP = st.sampled_from(["all_reduce", "broadcast", "barrier", "all_to_all"]) | TEXT
AT = st.sampled_from([NOW, NOW - 40.0, NOW - 4.0]) | FIGURE
ENTRY = st.tuples(st.integers(0, 5), OP, st.integers(-2, 9), st.booleans(), AT, st.booleans()).map(list)
GROUP = st.fixed_dictionaries(
    {"entries": st.lists(ENTRY, max_size=4)},
    optional={"what": TEXT, "ranks": st.lists(st.integers(0, 6), max_size=5), "since": AT},
)
GROUPS = st.none() | st.dictionaries(st.sampled_from(["0", "1", "[x]"]) | TEXT, GROUP, max_size=2)
CHILD = st.fixed_dictionaries({"pid": st.integers(0, 9), "state": TEXT, "stack": STACK}, optional={"sleep_s": FIGURE})
STATES = st.sampled_from(["running", "sleeping", "blocked", "stopped", "traced", "ended", "unknown", "?"])
LOOK = st.fixed_dictionaries(
    {"local_rank": st.integers(0, 7), "pid": st.integers(0, 1 << 22), "state": STATES},
    optional={
        "now": st.just(NOW) | FIGURE,
        "cpu": st.none() | FIGURE,
        "below": st.none() | FIGURE,
        "bytes": st.none() | st.integers(0, 1 << 62),
        "rss_mb": st.none() | FIGURE,
        "swap_mb": st.none() | FIGURE,
        "waits_in": TEXT,
        "sleep_s": st.none() | FIGURE,
        "output_age_s": st.none() | FIGURE,
        "pause_s": st.none() | FIGURE,
        "stack": st.none() | STACK,
        "gil": st.booleans(),
        "spins": st.booleans(),
        "moved": st.booleans(),
        "children": st.lists(CHILD, max_size=2),
        "peers": st.dictionaries(st.sampled_from(["src", "dst", "x"]), st.integers(0, 6)),
        "groups": GROUPS,
        "missing": st.lists(TEXT, max_size=2),
    },
)
MANY = st.lists(LOOK, max_size=5)


def placed(looks: Sequence[Look], host: str = "node") -> list[Look]:
    return [{**one, "rank": rank, "host": f"{host}{rank // 2}"} for rank, one in enumerate(looks)]


@few
@given(MANY, st.booleans(), st.lists(st.sampled_from(["node0", "node9"]), max_size=2, unique=True))
def test_any_looks_are_judged_and_shown(looks: list[Look], asked: bool, absent: list[str]) -> None:
    sent = [{**one, "rank": rank, "host": "node0"} for rank, one in enumerate(looks)]
    answer = answers.check_result(
        "doctor", {"state": "running", "ended": False, "looks": sent, "slow": []}, "node0", {}
    )
    found = diagnose(answer["looks"], absent=absent, expected=dict.fromkeys(range(3), "node0"), asked=asked)
    assert found.verdict
    assert {one["rank"] for one in found.suspects} <= set(range(max(3, len(looks))))
    assert not found.suspects or found.stuck
    consultation = DoctorReport("train", "r1", "running", found, answer["looks"])
    consultation.to_json()
    screen = io.StringIO()
    make_console(screen).print(doctor_view(consultation, stacks=True))
    assert "\x1b" not in screen.getvalue()


@few
@given(MANY, st.randoms())
def test_the_order_of_looks_does_not_matter(looks: list[Look], rng: Any) -> None:
    mixed = placed(looks)
    rng.shuffle(mixed)
    assert diagnose(mixed) == diagnose(placed(looks))


@few
@given(MANY)
def test_the_names_of_hosts_do_not_matter(looks: list[Look]) -> None:
    before, after = diagnose(placed(looks)), diagnose(placed(looks, "machine"))
    assert [one["rank"] for one in before.suspects] == [one["rank"] for one in after.suspects]
    assert (before.stuck, before.groups) == (after.stuck, after.groups)
    assert re.sub(r"\bnode(?=[0-9])", "machine", before.verdict) == after.verdict


@given(
    st.lists(st.fixed_dictionaries({"cpu": FIGURE, "stack": st.lists(st.sampled_from([STEP, READ, MAIN]))}), max_size=5)
)
def test_where_all_have_done_the_same_and_nobody_waits_there_is_no_suspect(changes: list[dict[str, Any]]) -> None:
    looks = [look(rank, groups={"0": group(LOOP)}, **one) for rank, one in enumerate(changes)]
    found = diagnose(looks)
    assert not found.suspects
    assert not found.stuck


@given(
    work=st.sampled_from([{"cpu": 11.0}, {"below": 50.0}, {"bytes": 1 << 17}, {"sleep_s": 1.0}]),
    still=st.booleans(),
    share=st.floats(0.0, 1.0),
    odd=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    more=st.booleans(),
)
def test_work_or_a_short_sleep_excuses(
    work: dict[str, Any], still: bool, share: float, odd: set[int], more: bool
) -> None:
    """The excuse holds beside a rank without an excuse, and wherever the samples of a stack were."""
    seconds = share * (STALL_S * (BUSY_FACTOR if "sleep_s" in work else MOVING_FACTOR) - 1.5)
    blocked = min(odd) if more else None
    looks = [
        behind(rank, still=still, **({} if rank == blocked else work))
        if rank in odd
        else waits_in(rank, seconds=seconds)
        for rank in range(4)
    ]
    assert {one["rank"] for one in diagnose(looks).suspects} <= {blocked}
