from __future__ import annotations

from callgate.limits.admission import admit, release
from callgate.model import SlotSpec
from tests.limits.helpers import AGENT, make_slots


def test_as_many_enter_as_there_are_places() -> None:
    slots = make_slots(3)

    assert [admit((), (slots,), 0) for _ in range(5)] == [True, True, True, False, False]


def test_who_leaves_makes_room_for_one() -> None:
    slots = make_slots(1, used=1)

    release((slots,))

    assert [admit((), (slots,), 0) for _ in range(2)] == [True, False]


def test_a_lowered_limit_only_stops_new_entries() -> None:
    slots = make_slots(3, used=3)

    slots.change(SlotSpec(AGENT, 1))

    assert slots.used == 3
    admitted = []
    for _ in range(3):
        release((slots,))
        admitted.append(admit((), (slots,), 0))
    assert admitted == [False, False, True]


def test_a_raised_limit_admits_at_once() -> None:
    slots = make_slots(1, used=1)

    slots.change(SlotSpec(AGENT, 2))

    assert admit((), (slots,), 0)
