"""The one way from a command to its stdout and stderr: nothing unprintable passes.

Whoever puts foreign text into a sentence quotes it there, so that it stays in its line; what leaves
here is looked at again, line by line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from callgate.text import ascii_json, lines, quoted

if TYPE_CHECKING:
    from rich.text import Text


def answer(text: str) -> None:
    """Print what was asked for, on stdout."""
    typer.echo(lines(text))


def remark(text: str) -> None:
    """Print what should be known beside it, on stderr."""
    typer.echo(lines(text), err=True)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; strings keep all that is in them, as escapes."""
    tree = msgspec.to_builtins(value, str_keys=True)
    typer.echo(ascii_json(json.dumps(tree, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """Print one JSON object in one line on stdout, of which a stream has many."""
    typer.echo(ascii_json(msgspec.json.encode(value).decode()))


def rich_text(text: str, style: str = "") -> Text:
    """Return text for a terminal without markup: names may hold brackets, and worse."""
    from rich.text import Text as RichText  # noqa: PLC0415  # only a terminal pays for it

    return RichText(quoted(text), style)
