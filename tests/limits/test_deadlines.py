from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from callgate.limits.deadlines import COARSE_NS, FINE_NS, MAX_COARSE, NEVER, Deadlines, Timed
from tests.conftest import FULL
from tests.limits.helpers import DAY_NS, SECOND_NS

YEARS_NS = 3650 * DAY_NS
"""The longest timeout that a policy can state."""

near = st.one_of(
    st.integers(-COARSE_NS, COARSE_NS),
    st.integers(-2, 2).map(lambda slots: slots * FINE_NS),
    st.integers(0, 9).map(lambda slots: slots * COARSE_NS),
    st.integers(0, 3 * MAX_COARSE * COARSE_NS),
)
delays = near | st.integers(0, YEARS_NS)
starts = st.integers(YEARS_NS, 2**62)


@dataclass(eq=False)
class Item:
    check_at_ns: int
    deadline_bucket: set[Timed] | None = None


@dataclass
class Naive:
    """All items in a list, and the rule: due at the end of the fine slot."""

    items: list[Item] = field(default_factory=list)

    def due(self, now_ns: int) -> set[Item]:
        late = {item for item in self.items if end_ns(item) <= now_ns}
        self.items = [item for item in self.items if item not in late]
        return late


def end_ns(item: Item) -> int:
    return (item.check_at_ns // FINE_NS + 1) * FINE_NS


@given(starts, st.data())
def test_it_does_what_a_list_would_do_however_calls_come_and_go(
    now_ns: int, data: st.DataObject
) -> None:
    deadlines: Deadlines[Item] = Deadlines()
    naive = Naive()
    for step in data.draw(st.lists(st.sampled_from(["add", "add", "discard", "due"]), max_size=50)):
        if step == "add":
            item = Item(now_ns + data.draw(delays))
            deadlines.add(item)
            naive.items.append(item)
        elif step == "discard" and naive.items:
            item = naive.items.pop(data.draw(st.integers(0, len(naive.items) - 1)))
            deadlines.discard(item)
        elif step == "due":
            now_ns += max(0, data.draw(delays))
            late = deadlines.due(now_ns)
            assert len(late) == len(set(late))
            assert set(late) == naive.due(now_ns)
            assert all(item.deadline_bucket is None for item in late)
        assert deadlines.wake_ns <= min(map(end_ns, naive.items), default=NEVER)


@given(starts, st.lists(near, min_size=1, max_size=30))
def test_who_comes_when_told_finds_each_item_after_its_deadline_and_within_a_slot(
    start_ns: int, offsets: list[int]
) -> None:
    deadlines: Deadlines[Item] = Deadlines()
    deadlines.due(start_ns)
    waiting = {Item(start_ns + abs(offset)) for offset in offsets}
    for item in waiting:
        deadlines.add(item)

    while waiting:
        now_ns = deadlines.wake_ns
        for item in deadlines.due(now_ns):
            assert item.check_at_ns < now_ns <= item.check_at_ns + FINE_NS
            waiting.remove(item)
        assert deadlines.wake_ns > now_ns
    assert deadlines.due(NEVER) == []


@given(starts, st.integers(0, 3 * COARSE_NS))
def test_an_item_is_due_at_the_end_of_its_slot_and_not_a_nanosecond_before(
    start_ns: int, delay_ns: int
) -> None:
    deadlines: Deadlines[Item] = Deadlines()
    deadlines.due(start_ns)
    item = Item(start_ns + delay_ns)
    deadlines.add(item)

    assert deadlines.due(end_ns(item) - 1) == []
    assert deadlines.due(end_ns(item)) == [item]


@given(starts, st.integers(1, YEARS_NS))
def test_an_item_whose_time_has_passed_already_is_due_at_once(now_ns: int, late_ns: int) -> None:
    deadlines: Deadlines[Item] = Deadlines()
    deadlines.due(now_ns)
    item = Item(now_ns - late_ns - FINE_NS)
    deadlines.add(item)

    assert deadlines.wake_ns <= now_ns
    assert deadlines.due(now_ns) == [item]


def test_an_item_that_was_discarded_is_never_due() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    item = Item(SECOND_NS)
    deadlines.add(item)

    deadlines.discard(item)
    deadlines.discard(item)

    assert deadlines.due(NEVER) == []


def test_an_item_that_was_due_can_be_watched_again() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    item = Item(SECOND_NS)
    deadlines.add(item)
    assert deadlines.due(2 * SECOND_NS) == [item]

    item.check_at_ns = 3 * SECOND_NS
    deadlines.add(item)

    assert deadlines.due(3 * SECOND_NS) == []
    assert deadlines.due(3 * SECOND_NS + FINE_NS) == [item]


def test_without_items_there_is_nothing_to_wake_for() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    assert deadlines.wake_ns == NEVER

    deadlines.due(SECOND_NS)

    assert deadlines.wake_ns == NEVER


def test_calls_that_ask_for_any_time_up_to_years_leave_a_bounded_number_of_slots() -> None:
    random = Random(7)  # noqa: S311
    deadlines: Deadlines[Item] = Deadlines()
    now_ns = YEARS_NS
    for number in range(1_000_000 if FULL else 100_000):
        item = Item(now_ns + random.randrange(YEARS_NS))
        deadlines.add(item)
        deadlines.discard(item)
        if number % 1_000 == 0 and deadlines.wake_ns <= now_ns:
            now_ns += FINE_NS
            deadlines.due(now_ns)

    assert len(deadlines._coarse) + len(deadlines._fine) < 5_000
    assert len(deadlines._coarse_keys) == len(deadlines._coarse)
