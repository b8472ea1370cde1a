"""Where client and server run: each on a processor of its own, as on a machine with many.

Two processes that only wait for each other end up on one processor, where a switch between them
costs a tenth of waking another one; and nothing that stands between them can be there too. On
two processors the scheduler decides from run to run: the bare server at window 1 took 11 µs a
call in one and 85 µs in the next. So the two ends are put apart, for everybody, and what is
between them runs where the scheduler likes.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

APART = "client and server on a processor each, what is between them free"
TOGETHER = "as the scheduler likes: there are not two processors to choose from"


def _processors() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def apart(servers: Iterable[int]) -> Iterator[str]:
    """Put this process and those servers apart; says where things run.

    Start what is measured before: a child is born where its parent may run.
    """
    here = _processors()
    if len(here) < 2:
        yield TOGETHER
        return
    for pid in servers:
        os.sched_setaffinity(pid, {here[-1]})
    os.sched_setaffinity(0, {here[0]})
    try:
        yield APART
    finally:
        os.sched_setaffinity(0, here)
