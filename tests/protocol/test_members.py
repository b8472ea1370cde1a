from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from callgate.protocol import members as members_module
from callgate.protocol.members import (
    MAX_KEY_CHARS,
    MAX_MEMBERS,
    Known,
    elements,
    fold,
    walk,
    without_halves,
)
from callgate.protocol.problem import ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

KNOWN = Known(("name", "_meta", "callgate/timeout_ms", "progressToken"))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}])


@given(st.dictionaries(st.text().map(lambda key: "x" + key), values, max_size=8), layouts)
def test_a_walk_finds_every_member_as_it_is_written(
    value: dict[str, object], layout: dict[str, object]
) -> None:
    text = json.dumps(value, **layout).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]

    members = walk(text, KNOWN)

    assert list(members) == list(value)
    assert all(bytes(raw) == bytes(raw).strip() for raw in members.values())
    assert {key: json.loads(bytes(raw)) for key, raw in members.items()} == value


@given(st.lists(values, max_size=8), layouts, st.integers(0, 9))
def test_the_elements_of_an_array_are_found(
    value: list[object], layout: dict[str, object], limit: int
) -> None:
    text = json.dumps(value, **layout).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]

    found = elements(Raw(text), limit)

    assert [json.loads(bytes(raw)) for raw in found] == value[:limit]


keys = st.sampled_from(
    ["name", "Name", "n\\u0061me", "_meta", "x", "y", "", "\u00e9", "name\\u0000"]
)
sizes = st.sampled_from([0, 10, 5000])
"""An object of more than 4 KiB is read in another way."""


@given(st.lists(st.tuples(keys, sizes), max_size=4), st.sampled_from(["", " ", "\n"]))
def test_reading_says_what_a_walk_says(pairs: list[tuple[str, int]], blank: str) -> None:
    members = ",".join(f'"{key}":{blank}"{"z" * size}"' for key, size in pairs)
    data = f"{{{members}}}".encode()

    def outcome(read: Callable[[bytes], object]) -> object:
        try:
            return read(data)
        except ProtocolError as error:
            return error.reason

    assert outcome(KNOWN.read) == outcome(lambda data: walk(data, KNOWN))


@pytest.mark.parametrize("pad", [0, 5000])
def test_an_object_with_too_many_members_is_refused_at_any_size(pad: int) -> None:
    members = {f"x{number}": 1 for number in range(MAX_MEMBERS)} | {"pad": "y" * pad}

    with pytest.raises(ProtocolError) as caught:
        KNOWN.read(msgspec.json.encode(members))

    assert caught.value.reason == Reason.TOO_MANY_KEYS


def test_a_key_too_long_to_fold_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        KNOWN.read(b'{"' + b"x" * (MAX_KEY_CHARS + 1) + b'":1}')

    assert caught.value.reason == Reason.LOOKALIKE_KEY


@given(st.text())
def test_folding_text_is_folding_it_character_by_character(text: str) -> None:
    ascii_only = text.encode("ascii", "ignore").decode()

    assert fold(ascii_only) == fold(ascii_only + "\u00e9").removesuffix("\u00e9")


def test_msgspec_still_says_where_a_value_ends() -> None:
    """The walk steps over arrays and objects by it; were it gone, frames would be refused."""
    with pytest.raises(msgspec.DecodeError, match=r"trailing characters \(byte 4\)"):
        msgspec.json.decode(b"[1],", type=Raw)


@pytest.mark.parametrize(
    "key",
    [
        "Name",
        "NAME",
        "name\0",
        "\0name",
        "Name\0 or anything",
        "na\u200bme",
        "name ",
        "\ufeffname",
        "\uff4e\uff41me",
        "name\ufe0f",
        "ProgressToken",
        "progre\u017fsToken",
        "CALLGATE/timeout_ms",
        "_ meta",
        "\u2060_meta",
        "callgate\uff0ftimeout_ms",
        "name\u3000",
        "na\u00adme",
    ],
)
def test_a_key_that_resembles_one_of_ours_is_refused(key: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        walk(json.dumps({key: 1}).encode(), KNOWN)

    assert caught.value.reason == Reason.LOOKALIKE_KEY


@pytest.mark.parametrize("key", ["names", "nam", "title", "meta", "n\u00e4me", "\u043dame"])
def test_a_key_that_resembles_none_of_ours_passes(key: str) -> None:
    assert list(walk(json.dumps({key: 1}).encode(), KNOWN)) == [key]


@given(st.text(), st.sampled_from(["name", "NAME", "_meta", "progressToken"]), st.text())
def test_whatever_folds_to_one_of_ours_is_seen_as_its_double(
    before: str, key: str, after: str
) -> None:
    for text in (before + key + after, "".join(f"{char}{before}" for char in key)):
        if fold(text) in {fold(known) for known in KNOWN.keys}:
            assert KNOWN.resembled_by(text)


@pytest.mark.parametrize(
    "key",
    [
        "\ufdfa" * MAX_KEY_CHARS,
        "\u200b" * 900 + "\ufdfa" * 100,
        "name\0" + "\ufdfa" * 900,
        "".join(map(chr, range(0x4E00, 0x4E00 + MAX_KEY_CHARS))),
        "".join(map(chr, range(0xF0000, 0xF0000 + MAX_KEY_CHARS))),
    ],
)
def test_a_key_costs_no_more_folding_than_the_longest_of_ours(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[str] = []
    real = members_module.fold

    def counted(text: str) -> str:
        folded.append(text)
        return real(text)

    monkeypatch.setattr(members_module, "fold", counted)
    monkeypatch.setattr(members_module, "_fold_short", counted)

    KNOWN.resembled_by(key)

    assert sum(map(len, folded)) <= max(map(len, KNOWN.keys)) + 1


@pytest.mark.parametrize("around", ["\u200b", "\u00ad", "\U000f0000", "\ufe0f", "\u3000", "\u00a8"])
def test_a_long_key_of_what_nobody_sees_is_still_a_double(around: str) -> None:
    key = "".join(f"{around * 200}{char}" for char in "name")

    assert KNOWN.resembled_by(key)


@given(st.text())
def test_folding_twice_changes_nothing_more(key: str) -> None:
    assert fold(fold(key)) == fold(key)


def test_our_own_keys_are_not_taken_for_their_doubles() -> None:
    text = json.dumps(dict.fromkeys(KNOWN.keys, 1)).encode()

    assert walk(text, KNOWN).keys() == KNOWN.keys


HALVES = st.lists(
    st.sampled_from(
        [r"\ud83d", r"\uDe00", r"\uDBFF", r"\udc00", r"\n", "\\\\", '\\"', r"\u0041", "a", "ud83d"]
    ),
    max_size=12,
).map("".join)
"""What may stand in a string: pairs, halves of pairs, and what only looks like one."""


@given(HALVES)
def test_a_text_without_halves_is_as_long_and_every_reader_takes_it(text: str) -> None:
    data = f'{{"a":"{text}","b":1}}'.encode()

    instead = without_halves(data)

    assert len(instead) == len(data)
    assert msgspec.json.decode(instead)["b"] == 1
    has_half = any("\ud800" <= char <= "\udfff" for char in json.loads(data)["a"])
    if not has_half:
        assert msgspec.json.decode(data) == json.loads(data)


@given(HALVES)
def test_a_value_with_half_of_a_pair_is_found_as_it_is_written(text: str) -> None:
    data = f'{{"other":{{"deep":["{text}"]}}, "name":"x"}}'.encode()

    found = Known(("name",)).read(data)

    assert bytes(found["other"]) == f'{{"deep":["{text}"]}}'.encode()
    assert bytes(found["name"]) == b'"x"'


@pytest.mark.parametrize("key", [r"\ud83d", r"a\ude00"])
def test_a_key_with_half_of_a_pair_is_refused(key: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Known(("name",)).read(f'{{"name":"x","{key}":1}}'.encode())

    assert refused.value.reason is Reason.JSON


@pytest.mark.parametrize("pad", [0, 8192])
def test_a_key_twice_is_refused_though_half_of_a_pair_is_between(pad: int) -> None:
    data = r'{"name":"x","other":"\ud83d%s","name":"y"}' % ("x" * pad)

    with pytest.raises(ProtocolError) as refused:
        Known(("name",)).read(data.encode())

    assert refused.value.reason is Reason.DUPLICATE_KEY
