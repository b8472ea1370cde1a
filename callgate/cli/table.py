"""A table: in colour on a terminal, aligned text without cuts in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: Mapping[str, str],
    right: Sequence[str] = (),
) -> None:
    """Print it; `colours` are for cells whose whole text is a key of it."""
    if sys.stdout.isatty():
        _coloured(columns, rows, colours, right)
    else:
        _plain(columns, rows)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def _coloured(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    colours: Mapping[str, str],
    right: Sequence[str],
) -> None:
    from rich.console import Console  # noqa: PLC0415  # only a terminal pays for it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        # Text, not markup: names may hold brackets.
        table.add_row(*(Text(cell, colours.get(cell, "")) for cell in row))
    Console().print(table)
