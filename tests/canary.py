"""A detector of leaked secrets: plant a canary in every input, search every sink.

A secret seldom leaks as it is: it is escaped into JSON, perhaps twice, encoded with base64
at any of three alignments, or cut by a length limit. `Canary` knows those forms, of the whole
secret and of both ends of each long run of letters and digits in it, so that a piece is found
too.
`test_canary_detector.py` is the negative control: planted leaks must all be caught.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MARKERS = ("api_key", "authorization", "bearer ", "sk-", "-----BEGIN")
"""What no durable artifact may contain, whatever follows it."""

# A marker that starts inside a word is no marker: `disk-full`, `task-1`.
_MARKERS = {
    marker: re.compile(rb"(?<![A-Za-z0-9])" + re.escape(marker.encode()), re.IGNORECASE)
    for marker in MARKERS
}

AWKWARD = (
    '"',
    "\\",
    "\n",
    "é",
    "漢",
    "🗝",
    "'",
    "/",
    "%",
    "\t",
    "&=",
    '\\"',
    "\u2028",
    " +",
    "\x7f",
)
"""What encoders treat specially, each in its own way."""

PIECE = 14
"""Length of a piece: longer than "authorization", which clean text may have."""

_JSON_DEPTH = 3


class Canary:
    """A secret, and every form in which it might leak."""

    def __init__(self, secret: str) -> None:
        runs = [run for run in re.findall(r"[A-Za-z0-9]+", secret) if len(run) >= PIECE]
        pieces = [piece for run in runs for piece in (run[:PIECE], run[-PIECE:])]
        if not pieces:
            raise ValueError(f"a canary needs a run of {PIECE} letters or digits")
        self.secret = secret
        self.forms: dict[str, bytes] = {}
        """Name of the form → what is searched; a piece's forms are named `piece N: …`."""
        for name, form in _forms(secret):
            self._add(name, form)
        for number, piece in enumerate(pieces, start=1):
            for name, form in _forms(piece):
                self._add(f"piece {number}: {name}", form)

    def __repr__(self) -> str:
        return f"Canary({self.secret!a})"

    def find(self, haystack: bytes | str) -> list[str]:
        """The forms that are in it; empty if it is clean."""
        data = _as_bytes(haystack)
        return [name for name, form in self.forms.items() if form in data]

    def _add(self, name: str, form: bytes) -> None:
        if form not in self.forms.values():
            self.forms[name] = form


def canaries(count: int = 64, seed: str = "callgate") -> list[Canary]:
    """Always the same ones; each has a marker, two random runs and awkward text between."""
    made = []
    for number in range(count):
        digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
        runs = base64.b32encode(digest).decode().strip("=")
        marker = MARKERS[number % len(MARKERS)]
        first = AWKWARD[number % len(AWKWARD)]
        second = AWKWARD[(number * 7 + 3) % len(AWKWARD)]
        # A marker that ends in a letter must not become part of a piece.
        equals = "=" if marker[-1].isalnum() else ""
        made.append(Canary(f"{marker}{equals}{runs[:20]}{first}{second}{runs[20:40].lower()}"))
    return made


def leaks(planted: Iterable[Canary], haystack: bytes | str) -> dict[str, list[str]]:
    """Secret → forms found, of those that leaked."""
    data = _as_bytes(haystack)
    return {canary.secret: found for canary in planted if (found := canary.find(data))}


def find_markers(haystack: bytes | str) -> list[str]:
    """The sensitive markers that are in it, whatever their case."""
    data = _as_bytes(haystack)
    return [marker for marker, pattern in _MARKERS.items() if pattern.search(data)]


def _as_bytes(haystack: bytes | str) -> bytes:
    return haystack if isinstance(haystack, bytes) else haystack.encode("utf-8", "surrogatepass")


def _forms(text: str) -> Iterator[tuple[str, bytes]]:
    spelled = dict(_spellings(text))
    for name, spelling in spelled.items():
        yield name, spelling.encode()
    # What encodes bytes usually encodes a whole message, where the secret is escaped already.
    for name in ("raw", "json", "json ascii"):
        data = spelled[name].encode()
        for encoding, form in _encodings(data):
            yield f"{encoding} of {name}", form
    yield "utf-16-le", text.encode("utf-16-le")
    yield "utf-16-be", text.encode("utf-16-be")


def _spellings(text: str) -> Iterator[tuple[str, str]]:
    """As characters."""
    yield "raw", text
    for name, escape in (("json", _json), ("json ascii", _json_ascii)):
        escaped = text
        for depth in range(1, _JSON_DEPTH + 1):
            escaped = escape(escaped)
            yield name if depth == 1 else f"{name} in json x{depth - 1}", escaped
    yield "json ascii upper", _upper_escapes(_json_ascii(text))
    yield "json slashes", _json(text).replace("/", "\\/")
    yield "json ascii slashes", _json_ascii(text).replace("/", "\\/")
    units = text.encode("utf-16-be").hex()
    escapes = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    yield "json all escaped", escapes
    yield "json all escaped upper", _upper_escapes(escapes)
    yield "repr", repr(text)[1:-1]
    yield "ascii", ascii(text)[1:-1]
    yield "repr of bytes", repr(text.encode())[2:-1]


def _encodings(data: bytes) -> Iterator[tuple[str, bytes]]:
    """As bytes."""
    encoders: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
        ("base64", base64.b64encode),
        ("base64 urlsafe", base64.urlsafe_b64encode),
    )
    for name, encode in encoders:
        for offset in range(3):
            yield f"{name} +{offset}", _aligned(encode, data, offset)
    digits = data.hex()
    yield "hex", digits.encode()
    yield "hex upper", digits.upper().encode()
    percent = "".join(f"%{digits[i : i + 2]}" for i in range(0, len(digits), 2))
    yield "percent all", percent.encode()
    yield "percent all upper", percent.upper().encode()
    quoted = {
        "url": quote(data, safe=""),
        "url path": quote(data),
        "url form": quote_plus(data),
        "url component": quote(data, safe="!'()*"),  # JavaScript's encodeURIComponent
    }
    for name, form in quoted.items():
        yield name, form.encode()
        yield f"{name} lower", re.sub("%..", lambda found: found[0].lower(), form).encode()


def _aligned(encode: Callable[[bytes], bytes], data: bytes, offset: int) -> bytes:
    """What is sure to appear if the data starts at `offset` modulo 3 in what was encoded.

    Six bits a character: one that shares bits with a neighbour outside is cut off.
    """
    encoded = encode(b"\0" * offset + data).rstrip(b"=")
    shared_at_end = 1 if (offset + len(data)) % 3 else 0
    return encoded[(0, 2, 3)[offset] : len(encoded) - shared_at_end]


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


def _upper_escapes(text: str) -> str:
    return re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), text)
