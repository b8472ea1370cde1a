"""Show what a change changes, on a terminal that it cannot take over and without secrets.

Pure. Values of `env`, `headers` and the like are masked wherever they stand; what a terminal would
obey or hide is written as an escape sequence.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

from callgate.setup.formats.nodes import Splice, apply, line_of
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTEXT: Final = 2
MAX_LINE: Final = 400
"""Some programs write their whole file as one line."""

MASK: Final = "…"
MIN_SECRET: Final = 4
"""Masking `1` wherever it stands would hide the change and no secret."""

_SECRET: Final = frozenset({"env", "environment", "envs", "headers", "http_headers"})


def difference(before: str, splices: Sequence[Splice], value: Any) -> list[str]:
    """Return the lines of a unified diff; `value` is the document, for its secrets.

    Only the lines around the splices are compared: a file may have hundreds of thousands.
    """
    body = before.removeprefix("\ufeff")
    secrets = sorted(set(_secrets(value, inside=False)), key=len, reverse=True)
    lines = []
    for start, end, inside in _blocks(body, splices):
        block = body[start:end]
        moved = [Splice(each.start - start, each.end - start, each.text) for each in inside]
        old, new = (
            [_shown(line, secrets) for line in text.split("\n")]
            for text in (block, apply(block, moved))
        )
        lines.append(f"@@ line {line_of(body, inside[0].start)} @@")
        found = difflib.unified_diff(old, new, lineterm="", n=CONTEXT)
        lines += [line for line in list(found)[2:] if not line.startswith("@@")]
    return lines


def _blocks(body: str, splices: Sequence[Splice]) -> list[tuple[int, int, list[Splice]]]:
    """Return whole lines around splices, those that touch as one block."""
    blocks: list[tuple[int, int, list[Splice]]] = []
    for splice in sorted(splices, key=lambda each: each.start):
        start, end = splice.start, splice.end
        for _ in range(CONTEXT + 1):
            start = max(body.rfind("\n", 0, max(start - 1, 0)), -1) + 1 if start else 0
            feed = body.find("\n", min(end + 1, len(body)))
            end = len(body) if feed < 0 else feed
        if blocks and start <= blocks[-1][1]:
            first, _end, inside = blocks.pop()
            blocks.append((first, max(end, _end), [*inside, splice]))
        else:
            blocks.append((start, end, [splice]))
    return blocks


def _shown(line: str, secrets: list[str]) -> str:
    for secret in secrets:
        line = line.replace(secret, MASK)
    return quoted(line.removesuffix("\r").replace("\t", "    "), MAX_LINE)


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
