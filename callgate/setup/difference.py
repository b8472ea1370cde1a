"""Show what a change changes, on a terminal that it cannot take over and without secrets.

Pure. Values of `env`, `headers` and the like are masked wherever they stand; what a terminal would
obey or hide is written as an escape sequence.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT: Final = 2
MAX_LINE: Final = 400
"""Some programs write their whole file as one line."""

MASK: Final = "…"
MIN_SECRET: Final = 4
"""Masking `1` wherever it stands would hide the change and no secret."""

_SECRET: Final = frozenset({"env", "environment", "envs", "headers", "http_headers"})


def printable(text: str) -> str:
    """Return a foreign text with everything that is no visible character as an escape sequence."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def difference(before: str, after: str, value: Any) -> list[str]:
    """Return the lines of a unified diff; `value` is the document, for its secrets."""
    secrets = sorted(set(_secrets(value, inside=False)), key=len, reverse=True)
    old, new = ([_shown(line, secrets) for line in text.split("\n")] for text in (before, after))
    lines = difflib.unified_diff(old, new, "before", "after", lineterm="", n=CONTEXT)
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}{MASK}" for line in lines]


def _shown(line: str, secrets: list[str]) -> str:
    for secret in secrets:
        line = line.replace(secret, MASK)
    return printable(line.removesuffix("\r").replace("\t", "    "))


def _secrets(value: Any, *, inside: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets(each, inside=inside or key in _SECRET)
    elif isinstance(value, list):
        for each in value:
            yield from _secrets(each, inside=inside)
    elif inside and isinstance(value, str) and len(value) >= MIN_SECRET:
        yield value
        yield json.dumps(value)[1:-1]
        yield json.dumps(value, ensure_ascii=False)[1:-1]
