"""The negative control of every test that says "no secret here": planted leaks are caught.

Leaks are planted with other people's encoders, not with the detector's own.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import logging
import traceback
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode
from xml.sax.saxutils import quoteattr

import msgspec
import orjson
import pytest
import yaml

from tests.canary import AWKWARD, MARKERS, Canary, canaries, find_markers, leaks

if TYPE_CHECKING:
    from collections.abc import Callable

CANARIES = canaries()
RECORD = {"v": 1, "seq": 41, "event": "tool.call.completed", "agent": "web", "outcome": "ok"}
LINE = b'{"v":1,"seq":41,"ts":"2026-11-18T08:12:00.000001Z","event":"tool.call.completed"}\n'


def logged(secret: str) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    record = logging.LogRecord("web", logging.INFO, "", 0, "call of %r failed", (secret,), None)
    handler.emit(record)
    return stream.getvalue()


def raised(secret: str) -> str:
    return "".join(traceback.format_exception(ValueError({"query": secret})))


def escape_all(secret: str) -> str:
    units = secret.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def frame(secret: str, padding: int = 0) -> bytes:
    params = {"name": "search", "arguments": {"p": "x" * padding, "query": secret}}
    return orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})


def nested(secret: str, depth: int) -> str:
    text = secret
    for _ in range(depth):
        text = json.dumps({"message": text})
    return text


PLANTED: dict[str, Callable[[str], bytes | str]] = {
    "raw in a log line": lambda s: f"2026-11-18 08:12:00 INFO called search with {s} in 3 ms",
    "raw bytes between others": lambda s: b"\x00\xff" + s.encode() + b"\xfe",
    "json, compact": lambda s: orjson.dumps(RECORD | {"query": s}),
    "json, ascii": lambda s: json.dumps(RECORD | {"query": s}),
    "json, every character escaped": lambda s: f'{{"query":"{escape_all(s)}"}}',
    "json, as a key": lambda s: json.dumps({s: 1}),
    "json, msgspec": lambda s: msgspec.json.encode({"query": [s]}),
    "json in json": lambda s: nested(s, 2),
    "json in json in json": lambda s: nested(s, 3),
    "json, slashes escaped": lambda s: json.dumps({"q": s}).replace("/", "\\/"),
    "a message in base64, aligned": lambda s: base64.b64encode(frame(s, 0)),
    "a message in base64, one later": lambda s: base64.b64encode(frame(s, 1)),
    "a message in base64, two later": lambda s: base64.b64encode(frame(s, 2)),
    "basic auth": lambda s: b"Basic " + base64.b64encode(b"user:" + s.encode()),
    "urlsafe base64": lambda s: base64.urlsafe_b64encode(b"??" + s.encode() + b">>"),
    "urlsafe base64 in a token": lambda s: b"eyJ." + base64.urlsafe_b64encode(s.encode()) + b".x",
    "hex": lambda s: f"payload={s.encode().hex()}",
    "hex, upper": lambda s: binascii.hexlify(s.encode()).upper(),
    "hex of a message": lambda s: frame(s).hex(),
    "query string": lambda s: "GET /search?" + urlencode({"q": s, "page": 1}),
    "url path": lambda s: f"GET /files/{quote(s)} HTTP/1.1",
    "percent, all": lambda s: "".join(f"%{byte:02x}" for byte in s.encode()),
    "percent, all, upper": lambda s: "".join(f"%{byte:02X}" for byte in s.encode()),
    "a logger's %r": logged,
    "a traceback": raised,
    "repr of bytes": lambda s: f"received {s.encode()!r}",
    "yaml": lambda s: yaml.safe_dump({"query": s}, width=10_000),
    "xml": lambda s: f"<call query={quoteattr(s)}/>",
    "utf-16": lambda s: s.encode("utf-16"),
    "cut at the front": lambda s: "…" + s[-24:],
    "cut at the end": lambda s: json.dumps({"query": s[:28]}),
    "split over two attributes": lambda s: json.dumps(
        {"a": s[: len(s) // 2 + 3], "b": s[len(s) // 2 + 3 :]}
    ),
}


@pytest.mark.parametrize("how", PLANTED)
def test_a_planted_leak_of_each_canary_is_caught(how: str) -> None:
    for canary in CANARIES:
        haystack = PLANTED[how](canary.secret)
        data = haystack if isinstance(haystack, bytes) else haystack.encode()

        assert list(leaks(CANARIES, LINE * 3 + data + LINE * 3)) == [canary.secret]


WHOLE = [
    *("json, compact", "json, ascii", "json, every character escaped", "json in json"),
    *(
        "json in json in json",
        "basic auth",
        "urlsafe base64",
        "hex",
        "percent, all",
        "raw in a log line",
    ),
    *("a message in base64, aligned", "a message in base64, one later"),
    *("a message in base64, two later", "query string", "url path", "repr of bytes"),
]


@pytest.mark.parametrize("how", WHOLE)
def test_these_are_caught_whole_and_not_only_by_a_piece(how: str) -> None:
    for canary in CANARIES:
        found = canary.find(PLANTED[how](canary.secret))

        assert any(not name.startswith("piece") for name in found), canary


@pytest.mark.parametrize("urlsafe", [False, True])
@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("after", range(3))
def test_base64_is_caught_at_every_alignment(before: int, after: int, *, urlsafe: bool) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    for canary in CANARIES:
        # All ones: the neighbours' bits differ from the detector's zeros.
        data = b"\xff" * before + canary.secret.encode() + b"\xff" * after

        assert any(name.startswith("base64") for name in canary.find(encode(data)))


def test_at_least_twenty_kinds_of_leak_are_planted() -> None:
    assert len(PLANTED) >= 20
    assert len(CANARIES) == 64


def test_the_canaries_are_distinct_awkward_and_marked() -> None:
    secrets = [canary.secret for canary in CANARIES]

    assert len(set(secrets)) == 64
    assert all(any(awkward in secret for secret in secrets) for awkward in AWKWARD)
    assert all(any(marker in secret for secret in secrets) for marker in MARKERS)
    assert secrets == [canary.secret for canary in canaries()]


@pytest.mark.parametrize(
    "clean",
    [
        LINE * 100,
        json.dumps(RECORD),
        "rate limit of agent web reached: 60/minute; try again in 3.2 s",
        "0190a5b4-0000-7000-8000-000000000001 " * 50,
        base64.b64encode(bytes(range(256)) * 40),
        bytes(range(256)).hex(),
        canaries(1, seed="another")[0].secret,
        b"",
    ],
)
def test_clean_text_gives_nothing(clean: bytes | str) -> None:
    assert leaks(CANARIES, clean) == {}


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_found_in_any_case_at_a_words_start(marker: str) -> None:
    assert find_markers(f'{{"x": "{marker}abc"}}') == [marker]
    assert find_markers(f'{{"x": "{marker.upper()}abc"}}') == [marker]
    assert find_markers(f"x{marker}") == []


def test_clean_text_has_no_marker() -> None:
    assert find_markers('{"code":"disk-limit","tool":"task-list","agent":"author"}') == []


def test_a_secret_that_would_be_found_by_chance_is_no_canary() -> None:
    with pytest.raises(ValueError, match="letters or digits"):
        Canary("short!")
