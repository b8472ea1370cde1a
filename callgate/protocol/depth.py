"""How deep a frame is nested, told by one linear look before anything recursive reads it.

Pure. Readers of JSON call themselves for each level, here and at whoever gets the frame after us,
so a gate needs a bound of its own that does not depend on how deep its own stack stands. The
look never recurses: it drops all but quotes and brackets, then what stands between quotes, and
counts the rest in blocks; 16 MiB of nothing but brackets take it a tenth of a second. What it sees
of a frame that is no JSON may be wrong from the first error on, where every reader stops.
"""

from __future__ import annotations

from functools import cache
from typing import Final

MAX_DEPTH: Final = 256
"""Arrays and objects inside each other. SDKs' own readers end at 200 to 1,000."""

MAX_PLAIN_BYTES: Final = 2 * MAX_DEPTH
"""What nests deeper needs more: each level has an end, too."""

_KEPT: Final = b'"[]{}'
_OTHERS: Final = bytes(set(range(256)) - set(_KEPT))
_AS_BITS: Final = bytes.maketrans(b"[{]}", b"1100")
_BLOCK: Final = 8
"""Brackets in a byte, one bit each; so many are looked up at once."""


def is_too_deep(data: bytes) -> bool:
    """Return True if the frame `data` has more than `MAX_DEPTH` levels."""
    if data.find(b"{", MAX_DEPTH) < 0 and data.find(b"[", MAX_DEPTH) < 0:
        return False  # most frames: the last bracket of too many has all others before it
    if len(data) <= MAX_PLAIN_BYTES or not _has_many(data):
        return False
    if b'\\"' in data:
        # A run of backslashes is pairs from its left, and what is left of it is for the quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    data = data.translate(_AS_BITS, _OTHERS)
    # Two quotes side by side have nothing between them that counts, inside a string or out.
    outside = data.replace(b'""', b"").split(b'"')[::2]
    brackets = b"".join(outside)
    if not brackets:
        return False
    blocks = -(-len(brackets) // _BLOCK)
    rises, heights = _climbs()
    depth = 0
    for block in int(brackets.ljust(blocks * _BLOCK, b"0"), 2).to_bytes(blocks, "big"):
        if depth + heights[block] > MAX_DEPTH:
            return True
        depth += rises[block]
    return False


def _has_many(data: bytes) -> bool:
    """Return True if there are more than `MAX_DEPTH` opening brackets, inside strings or out.

    A search stops at the next one: most frames have a few, far apart.
    """
    left = MAX_DEPTH
    for bracket in (b"{", b"["):
        position = data.find(bracket)
        while position >= 0:
            if not left:
                return True
            left -= 1
            position = data.find(bracket, position + 1)
    return False


@cache
def _climbs() -> tuple[list[int], list[int]]:
    """Return of every block how much deeper it ends than it began, and how deep it gets."""
    rises, heights = [], []
    for block in range(1 << _BLOCK):
        depth = height = 0
        for bit in range(_BLOCK - 1, -1, -1):
            depth += 1 if block >> bit & 1 else -1
            height = max(height, depth)
        rises.append(depth)
        heights.append(height)
    return rises, heights
