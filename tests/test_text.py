from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.text import MAX_SHOWN_CHARS, ascii_json, lines, quoted

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
"""With lone surrogates."""
BAD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\rc\t\x7f", "a\\x0ab\\x0dc\\x09\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b\u200b", "a\\u2028b\\u200b"),
        ("\ud83d", "\\ud83d"),
        ("\U000e0041", "\\U000e0041"),
        ("[red]né 例 😀[/]", "[red]né 例 😀[/]"),
    ],
)
def test_what_is_not_printable_is_written_out(text: str, shown: str) -> None:
    assert quoted(text) == shown


@given(ANY_TEXT)
def test_nothing_unprintable_is_left_and_every_encoder_takes_it(text: str) -> None:
    shown = quoted(text)

    assert not [char for char in shown if unicodedata.category(char) in BAD]
    shown.encode()


@given(ANY_TEXT)
def test_lines_keeps_line_breaks_alone(text: str) -> None:
    assert lines(text).count("\n") == text.count("\n")
    assert quoted(lines(text).replace("\n", "")) == lines(text).replace("\n", "")


def test_what_is_long_is_cut() -> None:
    assert len(quoted("x" * 1_000_000)) == MAX_SHOWN_CHARS
    assert quoted("x" * 10, 5) == "xxxx…"


@given(st.recursive(ANY_TEXT, lambda more: st.lists(more) | st.dictionaries(ANY_TEXT, more)))
def test_a_json_document_says_the_same_in_printable_characters(value: object) -> None:
    document = ascii_json(json.dumps(value, indent=2, ensure_ascii=False))

    assert json.loads(document) == json.loads(json.dumps(value))
    assert not [c for c in document if c != "\n" and unicodedata.category(c) in BAD]
