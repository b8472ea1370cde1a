"""Make text that others wrote fit to be shown: on a terminal, in a log, on a page.

Pure. A policy, a manifest, a tool or a file may be named with escape sequences that move the
cursor, with line breaks that forge a line of ours, with characters that reverse the direction of
what follows, with half of a surrogate pair that no encoder takes, or at any length. `quoted`
writes all of that out in ASCII. It stands where foreign text is put into a sentence; `lines` stands
where finished text leaves, so that what a sentence forgot is written out there, too.
"""

from __future__ import annotations

from typing import Final

MAX_SHOWN_CHARS: Final = 4096
"""As long as a path on Linux may be; every name is shorter."""

_CUT: Final = "…"
_BMP: Final = 0xFFFF
_BYTE: Final = 0xFF


def quoted(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    r"""Return text in one line: what is not printable as `\x1b` or `\u202e`, what is long cut.

    Printable is what Unicode calls so: no control or format character, no separator but the blank,
    no surrogate, nothing unassigned.
    """
    if len(text) > limit:
        text = text[: limit - 1] + _CUT
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def lines(text: str) -> str:
    """Return text of several lines, each of them quoted but for its length."""
    return "\n".join(quoted(line, len(line)) for line in text.split("\n"))


def ascii_json(document: str) -> str:
    """Return a JSON document with the same content and no character that is not printable.

    Outside of its strings a document has only ASCII, and inside of them every character may stand
    as an escape; a line break is left, because only the layout has one.
    """
    if document.isprintable():
        return document
    return "".join(
        char if char == "\n" or char.isprintable() else _json_escape(ord(char)) for char in document
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code <= _BYTE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _BMP else f"\\U{code:08x}"


def _json_escape(code: int) -> str:
    if code <= _BMP:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
