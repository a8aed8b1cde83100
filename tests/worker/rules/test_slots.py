"""A run gets all its slots or none, in the order of the tickets, and passes only where that delays no earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ddpctl_worker.rules.slots import SlotEntry, choose_slots, list_ahead, place_in_line

BOX = ("0", "1", "2", "3", "4", "5", "6", "7")


def holder(name: str, *held: str, account: str = "ann") -> SlotEntry:
    return SlotEntry(name, name, account, 0.0, len(held), BOX, held)


def ticket(name: str, want: int, since: float = 1.0, pool: Sequence[str] = BOX, **more: Any) -> SlotEntry:
    return SlotEntry(name, name, more.pop("account", "ann"), since, want, tuple(pool), **more)


@st.composite
def situations(draw: st.DrawFn, ahead: int = 0) -> tuple[SlotEntry, list[SlotEntry], set[str]]:
    """A ticket, the other entries of its host (``ahead``: at least so many earlier tickets), and foreign slots."""
    slots = list(BOX[: draw(st.integers(1, 8))])
    free = draw(st.permutations(slots))
    entries, at = [], 0
    for number in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 3))
        if held := free[at : at + size]:
            entries.append(holder(f"h{number}", *held))
        at += size
    taken = set(draw(st.lists(st.sampled_from(slots), max_size=1)))

    def waiting(name: str, since: float) -> SlotEntry:
        pool = draw(st.lists(st.sampled_from(slots), min_size=1, unique=True) | st.just(slots))
        return ticket(name, draw(st.integers(1, len(pool))), since, pool, ready=draw(st.integers(0, 9)) > 0)

    entries += [waiting(f"t{number}", 1.0 + number) for number in range(draw(st.integers(ahead, 3)))]
    own = waiting("own", 9.0 if ahead else draw(st.sampled_from((0.5, 1.5, 2.5, 9.0))))._replace(ready=True)
    return own, draw(st.permutations(entries)), taken


def used(entries: Sequence[SlotEntry], taken: set[str]) -> set[str]:
    return taken.union(*(entry.held for entry in entries))


@given(situations())
def test_all_slots_or_none_and_each_of_them_free(situation: tuple[SlotEntry, list[SlotEntry], set[str]]) -> None:
    own, entries, taken = situation
    chosen = choose_slots(own, entries, taken)
    assert len(set(chosen)) in (0, own.want)
    assert set(chosen) <= set(own.pool) - used(entries, taken)
    assert list(chosen) == [slot for slot in own.pool if slot in chosen]


@given(situations())
def test_the_first_in_line_gets_free_slots_at_once(situation: tuple[SlotEntry, list[SlotEntry], set[str]]) -> None:
    own, entries, taken = situation
    assume(not any(entry.ready for entry in list_ahead(own, entries)))
    assert bool(choose_slots(own, entries, taken)) == (len(set(own.pool) - used(entries, taken)) >= own.want)


FOREIGN_ON_A_HELD_SLOT = (
    ticket("own", 1, 9.0, "01234"),
    [holder("a", "0", "1"), ticket("big", 4, pool="01234")],
    {"0"},
)


@given(situations(ahead=1))
@example(FOREIGN_ON_A_HELD_SLOT)  # the program may outlive the run that has the slot
def test_no_later_run_delays_the_first_in_line(situation: tuple[SlotEntry, list[SlotEntry], set[str]]) -> None:
    """Whichever holders end: the first in line can start when it could without the later run."""
    own, entries, taken = situation
    ahead = [entry for entry in list_ahead(own, entries) if entry.ready]
    chosen = set(choose_slots(own, entries, taken))
    if not ahead:
        return
    pool, want = set(ahead[0].pool), ahead[0].want
    holders = [set(entry.held) for entry in entries if entry.held] + [{slot} for slot in taken]
    for rest in chain.from_iterable(combinations(holders, count) for count in range(len(holders) + 1)):
        free = pool.difference(*rest)
        assert (len(free) >= want) == (len(free - chosen) >= want)


@pytest.mark.parametrize(
    ("own", "entries", "chosen"),
    [
        (ticket("own", 2), [], ("0", "1")),
        (ticket("own", 2), [holder("a", "0", "2")], ("1", "3")),
        (ticket("own", 3, pool=("7", "1", "5")), [], ("7", "1", "5")),
        (ticket("own", 8), [holder("a", "0")], ()),
        # six of eight are wanted, four held: two are free, and without them the first would wait for both holders
        (ticket("own", 2, 2.0), [holder("a", *"0123"), holder("b", *"45"), ticket("big", 6)], ()),
        # one holder of six: when it ends, six are free beside the two of the later run
        (ticket("own", 2, 2.0), [holder("a", *"012345"), ticket("big", 6)], ("6", "7")),
        # the first wants other slots
        (ticket("own", 1, 2.0, "67"), [holder("a", "0"), ticket("big", 4, pool="0123")], ("6",)),
        # the first waits for another host
        (ticket("own", 8, 2.0), [ticket("big", 8, ready=False)], tuple(BOX)),
        (ticket("own", 1, 2.0, ready=False), [], ()),
    ],
)
def test_choices(own: SlotEntry, entries: list[SlotEntry], chosen: tuple[str, ...]) -> None:
    assert choose_slots(own, entries) == chosen


def test_an_account_over_its_limit_waits_and_holds_nobody_up() -> None:
    entries = [holder("a", "0", "1", account="ann"), ticket("over", 3, 1.0, account="ann")]
    assert choose_slots(entries[1], entries, limit=4) == ()
    assert (
        choose_slots(ticket("own", 6, 2.0, account="bob"), entries, limit=6) == ()
    )  # the limit is not reached: a turn
    assert choose_slots(ticket("own", 4, 2.0, account="bob"), entries, limit=4) == ("2", "3", "4", "5")


def test_places_count_from_the_earliest_ticket() -> None:
    line = [ticket("late", 1, 3.0), ticket("early", 1, 1.0), holder("runs", "0"), ticket("middle", 1, 2.0)]
    places = {entry.name: place_in_line(entry, line) for entry in line}
    assert places == {"early": 1, "middle": 2, "late": 3, "runs": None}
