r"""The members of a JSON object as raw text, so that what is not ours is never decoded.

Pure. Readers differ on what they make of an object: of two equal keys some take the first
and most the last, some ignore case, some stop at a NUL. Where a gate decides by a member,
all readers must find the same one; so the walk here refuses a key that comes twice, and a
key that is not one of ours but folds to one of them.

Half of a surrogate pair (`"\ud83d"`, what JavaScript leaves of an emoji that it cuts) is text to
most readers and none to msgspec. Where a value is only passed on, its structure is told from a text
of the same length without halves, and its bytes stay; a key or a name that we read has none.

The walk is for frames that msgspec has found valid. It steps over strings and numbers with a
pattern and over arrays and objects with msgspec itself, which says where a value ends.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from callgate.protocol.depth import is_too_deep
from callgate.protocol.problem import Id, ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

Members = dict[str, Raw]

NOTHING: Final = Raw(b"")
"""A member that is not there."""

MAX_MEMBERS: Final = 128
"""Of an object that we walk. The largest in either protocol has 9; each costs about 2 µs."""

MAX_KEY_CHARS: Final = 1024
"""Of a key that is none of ours; nobody's is longer, and looking at one takes time."""

MAX_ID: Final = 2**53
"""Beyond it JavaScript's numbers are not exact, so two ids would become one."""

MAX_ID_CHARS: Final = 256
"""Ids are kept while a call is in flight."""

SPACE: Final = rb"[ \t\r\n]*+"
STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
KEY: Final = re.compile(SPACE + rb"(" + STRING + rb")" + SPACE + rb":" + SPACE, re.DOTALL)
SCALAR: Final = re.compile(STRING + rb"|[-+.0-9A-Za-z]++", re.DOTALL)
AFTER: Final = re.compile(SPACE + rb"([,}])")
OPENING: Final = re.compile(SPACE + rb"\{")
_VALUE_END = re.compile(r"trailing characters \(byte (\d+)\)")

_check = msgspec.json.Decoder(Raw).decode
_text = msgspec.json.Decoder(str).decode
_id = msgspec.json.Decoder(int | str).decode
_RAW_ID: Final = re.compile(rb"-?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null")


def check_json(data: bytes) -> None:
    """Raise unless `data` is one JSON value that strict readers read alike.

    msgspec leaves the bytes inside a string unread; that they are UTF-8 is checked here.
    """
    check_depth(data)
    check_utf8(data)
    try:
        _check(data)
    except msgspec.DecodeError:
        try:
            _check(without_halves(data))
        except msgspec.DecodeError:
            raise ProtocolError(Reason.JSON) from None


def without_halves(data: bytes) -> bytes:
    """Return JSON with the same structure, byte for byte, and no half of a surrogate pair.

    What its strings say may differ: a backslash that is escaped becomes another escape, so that
    each one that is left begins an escape.
    """
    if b"\\u" not in data:
        return data
    return _HALF.sub(_NO_HALF, data.replace(b"\\\\", b"\\n"))


_HALF: Final = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""The first half of a pair without a second one, or a second one without a first."""
_NO_HALF: Final = rb"\\u0020"


def check_depth(data: bytes) -> None:
    """Raise if `data` has more levels than anybody has to read."""
    if is_too_deep(data):
        raise ProtocolError(Reason.DEPTH)


def check_utf8(data: bytes) -> None:
    """Raise unless `data` is UTF-8."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise ProtocolError(Reason.UTF8) from None


def one_line(data: bytes) -> bytes:
    """Valid JSON without line breaks: there they are only blanks between tokens.

    A reader of lines would take what stands between two of them for a frame of its own; and
    Python's text streams break lines at a bare carriage return too.
    """
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")
    return data


def walk(data: bytes | Raw, known: Known, structure: bytes | None = None) -> Members:
    """The members of the object `data`, which is valid JSON; `structure` is it without halves."""
    if isinstance(data, Raw):
        data = bytes(data)
    opening = OPENING.match(data)
    if opening is None:
        raise ProtocolError(Reason.NOT_OBJECT)
    view = memoryview(data)
    plain = memoryview(without_halves(data) if structure is None else structure)
    members: Members = {}
    position = opening.end()
    while (key_match := KEY.match(data, position)) is not None:
        key = read_text(key_match[1])
        if key is None:
            raise ProtocolError(Reason.JSON)
        if key in members:
            raise ProtocolError(Reason.DUPLICATE_KEY)
        if len(members) == MAX_MEMBERS:
            raise ProtocolError(Reason.TOO_MANY_KEYS)
        if key not in known.keys and known.resembled_by(key):
            raise ProtocolError(Reason.LOOKALIKE_KEY)
        start = key_match.end()
        end = _value_end(data, plain, start)
        members[key] = Raw(view[start:end])
        after = AFTER.match(data, end)
        if after is None or after[1] == b"}":
            break
        position = after.end()
    return members


def elements(raw: Raw, limit: int) -> list[Raw]:
    """The first `limit` elements of the array `raw`, which is valid JSON."""
    data = bytes(raw)
    if not data.startswith(b"["):
        raise ProtocolError(Reason.RESULT)
    view = memoryview(data)
    structure = memoryview(without_halves(data))
    found: list[Raw] = []
    position = _blanks_end(data, 1)
    while len(found) < limit and not data.startswith(b"]", position):
        end = _value_end(data, structure, position)
        found.append(Raw(view[position:end]))
        position = _blanks_end(data, end)
        if not data.startswith(b",", position):
            break
        position = _blanks_end(data, position + 1)
    return found


def _blanks_end(data: bytes, position: int) -> int:
    return _BLANKS.match(data, position).end()  # type: ignore[union-attr]  # matches nothing too


_BLANKS: Final = re.compile(SPACE)


def is_object(raw: Raw) -> bool:
    """Whether a raw value, which has no blanks before it, is an object."""
    return memoryview(raw)[0] == _BRACE


_BRACE: Final = ord("{")


def _value_end(data: bytes, structure: memoryview, start: int) -> int:
    scalar = SCALAR.match(data, start)
    if scalar is not None:
        return scalar.end()
    try:
        _check(structure[start:])
    except msgspec.DecodeError as error:
        # It read one character past the value and past blanks after it.
        found = _VALUE_END.search(str(error))
        if found is not None:
            return start + len(data[start : start + int(found[1]) - 1].rstrip())
    raise ProtocolError(Reason.JSON)


class Known:
    """The keys that are read at one place of a message."""

    __slots__ = ("_beginnings", "_decode", "_folded", "_order", "keys")

    def __init__(self, keys: Iterable[str]) -> None:
        self._order = tuple(keys)
        self.keys = frozenset(self._order)
        self._folded = frozenset(map(fold, self.keys))
        self._beginnings = frozenset(
            key[:end] for key in self._folded for end in range(len(key) + 1)
        )
        names = {f"field_{number}": key for number, key in enumerate(self._order)}
        fields = [(name, Raw, NOTHING) for name in names]
        shape = msgspec.defstruct("Shape", fields, rename=names, gc=False)
        self._decode = msgspec.json.Decoder(shape).decode

    def resembled_by(self, key: str) -> bool:
        """Return True if a careless reader could take `key`, which is none of ours, for one."""
        if len(key) > MAX_KEY_CHARS:
            return True
        if self._is_double(key):
            return True
        # A reader whose strings end at a NUL sees what stands before it.
        before, nul, _ = key.partition("\0")
        return bool(nul) and self._is_double(before)

    def _is_double(self, key: str) -> bool:
        """Return True if `key` folds to one of ours.

        Ours are ASCII, which nothing composes to, so each character can be folded by itself; and
        the first that does not belong ends it. One character may fold to eighteen: a key of them
        would cost a hundred times what it cost to write.
        """
        if key.isascii():
            return (_fold_short(key) if len(key) <= _SHORT else fold(key)) in self._folded
        folded = ""
        for char in key:
            if unicodedata.category(char)[0] not in _INVISIBLE:
                folded += _fold_short(char)
                if folded not in self._beginnings:
                    return False
        return folded in self._folded

    def read(self, data: bytes | Raw) -> Members:
        """The members of the object `data`, which is valid UTF-8.

        One pass if each key comes once and there are no escapes or blanks between values: the
        lengths then add up, and only then. Else a walk.
        """
        size = len(data)
        try:
            members = _read_small(data) if size <= _SMALL_BYTES else self._read_large(data)
        except msgspec.ValidationError:
            raise ProtocolError(Reason.NOT_OBJECT) from None
        except msgspec.DecodeError:
            structure = without_halves(bytes(data))
            _check(structure)
            return walk(data, self, structure)
        plain_bytes = (
            1 + 4 * len(members) + sum(map(len, members)) + sum(map(len, members.values()))
        )
        if plain_bytes != size or len(members) > MAX_MEMBERS:
            return walk(data, self)
        if not members.keys() <= self.keys and any(
            map(self.resembled_by, members.keys() - self.keys)
        ):
            raise ProtocolError(Reason.LOOKALIKE_KEY)
        return members

    def _read_large(self, data: bytes | Raw) -> Members:
        """Without the members that are none of ours: they may be very many."""
        values = msgspec.structs.astuple(self._decode(data))
        return {key: raw for key, raw in zip(self._order, values, strict=True) if len(raw)}


_SMALL_BYTES: Final = 4096
"""So small that all members may be kept."""

_read_small = msgspec.json.Decoder(Members).decode


def fold(key: str) -> str:
    """NFKC, case folded, without controls, blanks and marks that nobody sees."""
    if key.isascii():
        return _ASCII_INVISIBLE.sub("", key).casefold()
    key = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", key).casefold())
    return "".join(char for char in key if unicodedata.category(char)[0] not in _INVISIBLE)


_ASCII_INVISIBLE: Final = re.compile(r"[\x00-\x20\x7f]+")
_INVISIBLE: Final = frozenset("CZM")
"""Categories: controls and format characters, separators, marks."""

_SHORT: Final = 64
_fold_short = lru_cache(1024)(fold)


def read_id(raw: Raw | bytes) -> Id:
    """An id or a progress token; raises `ProtocolError` with `Reason.ID` for anything else."""
    try:
        value: Any = _id(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None
    if value.__class__ is int and -MAX_ID <= value <= MAX_ID:
        return value
    if value.__class__ is str and len(value) <= MAX_ID_CHARS:
        return value
    if len(raw) <= MAX_ID_CHARS and _RAW_ID.fullmatch(raw):
        return bytes(raw)
    raise ProtocolError(Reason.ID)


def read_text(raw: Raw | bytes) -> str | None:
    """A string member, or None if it is of another type."""
    try:
        return _text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
