"""The mixed workload: twelve tools of different names, arguments of 20 B to 2 KB.

What agents send is not one tool called over and over with equal arguments: code that is quick
only for that is found out here. The order is drawn once, with a fixed seed, so that every run
and every checkout gets the same calls.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

from benchmarks.stdio_echo import MIXED

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST_BYTES = 20
LARGEST_BYTES = 2_048
PERIOD = 480
"""Calls after which the mix begins again: 40 of each tool."""


def _drawn() -> list[tuple[str, int]]:
    """Draw the mix: each tool as often as the others, sizes even on a logarithmic scale."""
    draw = random.Random(12)  # noqa: S311  # the same in every run
    tools = [tool for tool in MIXED for _ in range(PERIOD // len(MIXED))]
    draw.shuffle(tools)
    steps = LARGEST_BYTES / SMALLEST_BYTES
    sizes = [round(SMALLEST_BYTES * steps ** (at / (PERIOD - 1))) for at in range(PERIOD)]
    draw.shuffle(sizes)
    return list(zip(tools, sizes, strict=True))


MIX = _drawn()


def mixed(count: int) -> list[tuple[str, int]]:
    """Return `count` calls of the mix: the tool, and the size of its arguments in bytes."""

    def forever() -> Iterator[tuple[str, int]]:
        while True:
            yield from MIX

    return list(islice(forever(), count))
