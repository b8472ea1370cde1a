"""No policy that is being written is ever used: a model of writers against two looks that agree.

A writer goes through a random list of steps: it truncates and writes in pieces, renames, deletes
and creates. Between two looks a writer that is not done makes at least one step that changes the
file; that is what two looks rely on. Every text that a writer finishes is one of `WHOLE`; each cut
of it that is a valid policy allows more than it, and must never be told.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from callgate.cli.watch import Watcher
from callgate.policy import Policy, PolicyError
from tests.conftest import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WALKS = 300 if FULL else 30
CHANGES = 12
WHOLE = [
    f"version: 1\nagents:\n  web:\n    concurrency: {number}\n    rate: {number}/minute\n"
    f"    tools:\n      read: {{rate: {number}/hour}}\n      delete: deny\n"
    for number in range(1, 6)
]


def steps(file: Path, text: str, rng: random.Random) -> Iterator[None]:
    """Write `text` in one of the ways in which programs do it; a yield is a step."""
    match rng.randrange(4):
        case 0:  # an editor or a shell: truncate, then write in pieces
            with file.open("w") as out:
                yield
                for piece in pieces(text, rng):
                    out.write(piece)
                    out.flush()
                    yield
        case 1:  # a careful one
            other = file.with_suffix(".new")
            other.write_text(text)
            other.rename(file)
            yield
        case 2:  # delete and create
            file.unlink(missing_ok=True)
            yield
            with file.open("w") as out:
                for piece in pieces(text, rng):
                    out.write(piece)
                    out.flush()
                    yield
        case _:  # over what is there, from the start, the rest cut at the end
            file.touch()
            with file.open("r+") as out:
                for piece in pieces(text, rng):
                    out.write(piece)
                    out.flush()
                    os.utime(out.fileno())
                    yield
                out.truncate()
            yield


def pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(rng.randrange(5)))})
    return [text[start:end] for start, end in pairwise(cuts)]


@pytest.mark.parametrize("seed", range(WALKS))
def test_only_a_policy_that_was_finished_is_ever_told(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # a walk that can be repeated
    file = tmp_path / "p.yaml"
    file.write_text(WHOLE[0])
    revisions = {Policy.parse(text).revision for text in WHOLE}
    watcher = Watcher(file, Policy.load(file))
    told: list[str] = []

    def look() -> None:
        found = watcher.look()
        if isinstance(found, Policy):
            assert found.revision in revisions, "a half-written policy was told"
            told.append(found.revision)

    for _ in range(CHANGES):
        text = rng.choice(WHOLE)
        writer = steps(file, text, rng)
        for _step in writer:
            for _more in range(rng.randrange(2)):
                next(writer, None)
            look()
        for _still in range(rng.randrange(4)):
            look()
    for _settled in range(2):
        look()

    last = Policy.load(file).revision
    assert last == Policy.parse(text).revision
    assert (told or [Policy.parse(WHOLE[0]).revision])[-1] == last


@pytest.mark.parametrize("cut", range(0, len(WHOLE[0]), 7))
def test_the_cuts_would_be_used_after_one_look(cut: int) -> None:
    """The model has teeth: most cuts are policies, and none of those denies `delete`."""
    try:
        found = Policy.parse(WHOLE[0][:cut])
    except PolicyError:
        return
    whole = Policy.parse(WHOLE[0])
    assert {each.key for each in found.loosened(whole, "web")} >= {"deny"} or cut == 0
