"""The one tool that every contender runs, and how to see what a run left on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ARGUMENTS = {"query": "x"}
ANSWER = ["x"]
CHUNK_BYTES = 1 << 20


async def search(query: str) -> list[str]:
    """Answer at once: what is measured is the way to the tool."""
    return [query]


def count_lines(paths: Iterable[Path]) -> int:
    """Newlines in all files together."""
    total = 0
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                total += chunk.count(b"\n")
    return total


def lines_a_call(paths: Iterable[Path], calls: int, expected: int) -> str:
    """Evidence that `calls` calls wrote `expected` lines each; anything less is no contest."""
    lines = count_lines(paths)
    if lines < calls * expected:
        raise AssertionError(f"{lines} lines for {calls} calls, expected {expected} each")
    return f"{lines / calls:.2f} log lines a call"
