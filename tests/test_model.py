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
