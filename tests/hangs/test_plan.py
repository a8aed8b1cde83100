"""The plan is a pure function of its seed, and each of its programs can be run."""

from __future__ import annotations

import ast
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import few
from tests.hangs import pauses, stragglers
from tests.hangs.judge import Expected
from tests.hangs.kinds import KINDS, team
from tests.hangs.plan import plan
from tests.hangs.programs import MARK, marked_lines, program

SEEDS = st.integers(-(2**31), 2**31)
NUMBERS = st.integers(0, 120)


@given(SEEDS, NUMBERS, NUMBERS)
@few
def test_a_longer_plan_begins_with_the_shorter(seed: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert plan(seed, long)[:short] == plan(seed, short)
    assert pauses.plan(seed, long)[:short] == pauses.plan(seed, short)


@given(SEEDS, NUMBERS)
def test_every_kind_comes_equally_often(seed: int, number: int) -> None:
    counts = Counter(round.kind for round in plan(seed, number))
    assert max(counts.values(), default=0) - min((counts[name] for name in KINDS), default=0) <= 1


@given(SEEDS, NUMBERS)
def test_a_round_is_one_that_its_kind_allows(seed: int, number: int) -> None:
    for round in plan(seed, number):
        kind = KINDS[round.kind]
        assert round.world in kind.worlds
        assert round.frame in kind.frames
        assert len(round.odd) in kind.odd
        assert set(round.odd) <= set(range(round.world))
        for ranks in kind.suspects(frozenset(round.odd), round.world):
            assert ranks <= set(range(round.world))


@given(SEEDS, NUMBERS)
@few
def test_the_odd_ranks_are_right_and_not_every_set_of_ranks_is(seed: int, number: int) -> None:
    for round in plan(seed, number):
        expected = Expected.of(round, "x.py", 15.0)
        assert expected.odd in expected.suspects
        assert len(expected.suspects) <= 3


def test_another_seed_gives_another_plan() -> None:
    assert plan(1, 40) != plan(2, 40)


def test_a_plan_of_some_kinds_has_no_others() -> None:
    assert {round.kind for round in plan(1, 10, ["spin", "lock"])} == {"spin", "lock"}


def test_each_program_is_python_and_says_where_it_hangs() -> None:
    wrong = []
    for kind in KINDS.values():
        for frame in kind.frames:
            text = program(frame, kind.parts)
            ast.parse(text)
            unfilled = [line for line in text.splitlines() if line.strip().startswith("#")]  # a place of the frame
            if bool(marked_lines(text)) is kind.gone or unfilled:
                wrong.append((kind.name, frame))
    assert wrong == []
    for pause in pauses.PROGRAMS.values():
        ast.parse(pause.text)
        assert "#FIRST" not in pause.text, pause.name


def test_a_marked_line_is_found_by_its_text() -> None:
    text = program("ddp", KINDS["sleep"].parts)
    (number,) = marked_lines(text)
    assert text.splitlines()[number - 1].strip() == f"time.sleep(3600)  {MARK}"


def test_a_subgroup_is_more_than_half_of_all_and_has_the_odd_rank() -> None:
    assert team(frozenset({3}), 4) == {3, 0, 1}
    assert team(frozenset({6}), 8) == {6, 7, 0, 1, 2}


def test_a_plan_of_slow_ranks_has_all_phases_and_ranks() -> None:
    runs = stragglers.plan(1, 30, balanced=False)
    assert {run.phase for run in runs} == set(stragglers.PHASES)
    assert {run.rank for run in runs} == {0, 1, 2, 3}
    assert {run.extra_s for run in stragglers.plan(1, 30, balanced=True)} == {0.0}
    ast.parse(stragglers.PROGRAM)


def test_a_slow_rank_is_to_be_named_alone_and_soon() -> None:
    slow, balanced = stragglers.plan(1, 1, balanced=False)[0], stragglers.plan(1, 1, balanced=True)[0]
    named = [{"rank": slow.rank, "lag_ms": 20.0}]
    assert stragglers.wrong(stragglers.Seen(slow, 50, named)) == []
    assert stragglers.wrong(stragglers.Seen(slow, 51, named)) != []
    assert stragglers.wrong(stragglers.Seen(slow, 100, [])) != []
    assert stragglers.wrong(stragglers.Seen(slow, 40, [*named, {"rank": (slow.rank + 1) % 4, "lag_ms": 9.0}])) != []
    assert stragglers.wrong(stragglers.Seen(balanced, 200, [])) == []
    assert stragglers.wrong(stragglers.Seen(balanced, 40, named)) != []
