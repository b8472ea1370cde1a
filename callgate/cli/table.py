"""A table: in colour on a terminal, aligned text without cuts in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from callgate.cli import say
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PADDING = 2
"""Between two columns, in a pipe as on a terminal."""


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: Mapping[str, str],
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table; `colours` are for cells whose whole text is a key of it.

    On a terminal that is too narrow the columns in `spare` are left out, one after the other;
    what is still too wide is wrapped. In a pipe everything is there.
    """
    if sys.stdout.isatty():
        _coloured(columns, rows, colours, right, spare)
    else:
        plain(columns, rows)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns without colour or cuts, for pipes and logs."""
    rows = [[quoted(cell) for cell in row] for row in rows]
    widths = _widths(columns, rows)
    for line in (columns, *rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say.answer((" " * _PADDING).join(cells).rstrip())


def _coloured(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    colours: Mapping[str, str],
    right: Sequence[str],
    spare: Sequence[str],
) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for it
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table(box=None, header_style="bold")
    shown = fitting(columns, _widths(columns, rows), spare, console.width)
    for number in shown:
        side = columns[number] in right
        table.add_column(columns[number], justify="right" if side else "left", overflow="fold")
    for row in rows:
        cells = (row[number] for number in shown)
        table.add_row(*(say.rich_text(cell, colours.get(cell, "")) for cell in cells))
    console.print(table)


def fitting(
    columns: Sequence[str], widths: Sequence[int], spare: Sequence[str], room: int
) -> list[int]:
    """Return the numbers of the columns that fit into `room`."""
    shown = list(range(len(columns)))
    for name in spare:
        if sum(widths[number] + _PADDING for number in shown) <= room:
            break
        shown.remove(columns.index(name))
    return shown


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]
