from __future__ import annotations

from itertools import pairwise
from uuid import UUID

from callgate.model import RequestIds


def test_ids_count_up_over_the_end_of_a_block_and_are_uuids_of_version_7() -> None:
    ids = RequestIds(1_763_400_000_000, b"\xff\xff\xff\xff")

    made = [ids.next() for _ in range(3 * 4096)]

    numbers = [UUID(one).int for one in made]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    assert {UUID(one).version for one in made} == {7}
    assert made[0].endswith("-000000000001")


def test_ids_that_are_taken_together_are_the_next_ones() -> None:
    one_by_one, together = (RequestIds(1_763_400_000_000, b"abcd") for _ in range(2))
    sizes = [1, 4_000, 94, 1, 1, 5_000, 3]

    made = [one for size in sizes for one in together.take(size)]

    assert made == [one_by_one.next() for _ in range(sum(sizes))]
    assert together.next() == one_by_one.next()
