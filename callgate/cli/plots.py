"""Small plots of block characters, for a terminal that can show them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
WIDTH: Final = 48
"""Two days of hours; with a title it fits a terminal of 80 columns."""
BAR: Final = 20


def can_draw(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that takes block characters."""
    try:
        _HEIGHTS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return stream.isatty()


def sparkline(values: Sequence[int], width: int = WIDTH) -> str:
    """Return one character a value, or for each of `width` spans of values; 0 is the lowest."""
    if len(values) > width:
        bounds = [len(values) * step // width for step in range(width + 1)]
        values = [max(values[a:b]) for a, b in pairwise(bounds)]
    most = max(values, default=0)
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[-(-value * top // most) if most else 0] for value in values)


def bar(value: int, most: int, width: int = BAR) -> str:
    """Return a bar whose length is `value` of `most`; what is not 0 is seen."""
    eighths = max(1, value * width * 8 // most) if value > 0 and most > 0 else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
