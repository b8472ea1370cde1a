"""No frame makes a backend run another tool than the one that was checked.

Six readers look at every frame that the codec takes, and at what it passes on: Python's json,
orjson, pydantic's, node's JSON.parse, and two careless ones, which ignore case, end keys at a
NUL and take the first or the last of two. What the codec refuses is never passed on.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pydantic_core
import pytest

from callgate.protocol import mcp, mcp_encode
from callgate.protocol.jsonrpc import Response, encode_response
from callgate.protocol.mcp import CallTool, Cancelled, Notification, Progress, Request
from callgate.protocol.problem import ProtocolError
from tests.conftest import FULL
from tests.protocol.corpus import Corpus

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES = 50_000 if FULL else 4_000
HERE = Path(__file__).parent

Seen = tuple[Any, Any, Any] | None
"""Method, tool and arguments that a reader finds; None if it does not take the frame."""


def passed_on(message: mcp.Message) -> bytes:
    match message:
        case CallTool():
            return mcp_encode.encode_call(message, 77, 5 if message.token is not None else None)
        case Response():
            return encode_response(77, message)
        case Request():
            return mcp_encode.encode_request(message, 77, 5)
        case Notification():
            return mcp_encode.encode_notification(message)
        case Cancelled():
            return mcp_encode.encode_cancelled(77, message.params)
        case Progress():
            return mcp_encode.encode_progress(5, message.params)


@pytest.fixture(scope="module")
def taken() -> list[tuple[bytes, mcp.Message]]:
    corpus = Corpus(seed=20261107)
    found = []
    for _ in range(FRAMES):
        frame = corpus.frame()
        try:
            found.append((frame, mcp.decode(frame)))
        except ProtocolError:
            continue
    return found


def member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def strict(loads: Callable[[bytes], Any], frame: bytes) -> Seen:
    try:
        value = loads(frame)
    except (ValueError, RecursionError):
        return None
    params = member(value, "params")
    return member(value, "method"), member(params, "name"), member(params, "arguments")


def careless(text: Any) -> Any:
    cut = re.sub("[\\x00-\\x20].*", "", text, flags=re.DOTALL) if isinstance(text, str) else text
    return cut.casefold() if isinstance(cut, str) else cut


def careless_pairs(pairs: list[tuple[str, Any]], *, first: bool) -> dict[str, Any]:
    return {
        careless(key): careless(value) if key == "method" else value
        for key, value in (reversed(pairs) if first else pairs)
    }


CARELESS = {
    f"careless, {which}": partial(
        strict, partial(json.loads, object_pairs_hook=partial(careless_pairs, first=first))
    )
    for which, first in (("first key", True), ("last key", False))
}
READERS: dict[str, Callable[[bytes], Seen]] = {
    "json": partial(strict, json.loads),
    "orjson": partial(strict, orjson.loads),
    "pydantic": partial(strict, pydantic_core.from_json),
    **CARELESS,
}


def node(frames: list[bytes]) -> list[Seen]:
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed: its JSON.parse cannot be asked")
    answer = subprocess.run(
        [program, str(HERE / "readers.js")],
        input=b"\n".join(map(base64.b64encode, frames)),
        capture_output=True,
        check=True,
        timeout=120,
    )
    seen = json.loads(answer.stdout)
    return [None if one is None else (one[0], one[1], json.loads(one[2])) for one in seen]


def ask(reader: str, frames: list[bytes]) -> list[Seen]:
    return node(frames) if reader == "node" else [READERS[reader](frame) for frame in frames]


def runs(message: mcp.Message) -> tuple[str, str] | None:
    """Method and tool that were checked."""
    return ("tools/call", message.name) if isinstance(message, CallTool) else None


def run_by(seen: Seen) -> tuple[str, str] | None:
    return None if seen is None or seen[0] != "tools/call" else (seen[0], seen[1])


def test_the_corpus_has_enough_of_either_kind(taken: list[tuple[bytes, mcp.Message]]) -> None:
    calls = [message for _, message in taken if isinstance(message, CallTool)]

    assert FRAMES >= 2_000
    assert 0.2 * FRAMES < len(taken) < 0.8 * FRAMES
    assert {call.name for call in calls} > {"allowed", "denied"}


@pytest.mark.parametrize("reader", [*READERS, "node"])
def test_every_reader_finds_the_tool_that_was_checked_in_what_is_passed_on(
    taken: list[tuple[bytes, mcp.Message]], reader: str
) -> None:
    seen = ask(reader, [passed_on(message) for _, message in taken])

    wrong = [
        (frame, one)
        for (frame, message), one in zip(taken, seen, strict=True)
        if one is not None and run_by(one) != runs(message)
    ]
    assert wrong == []


@pytest.mark.parametrize("reader", [*READERS, "node"])
def test_every_reader_finds_the_tool_that_was_checked_in_the_frame_itself(
    taken: list[tuple[bytes, mcp.Message]], reader: str
) -> None:
    seen = ask(reader, [frame for frame, _ in taken])

    wrong = [
        (frame, one)
        for (frame, message), one in zip(taken, seen, strict=True)
        if one is not None and run_by(one) != runs(message)
    ]
    assert wrong == []


@pytest.mark.parametrize("reader", [*READERS, "node"])
def test_arguments_mean_the_same_before_and_after(
    taken: list[tuple[bytes, mcp.Message]], reader: str
) -> None:
    calls = [(frame, message) for frame, message in taken if isinstance(message, CallTool)]
    before = ask(reader, [frame for frame, _ in calls])
    after = ask(reader, [passed_on(message) for _, message in calls])

    assert [repr(one and one[2]) for one in after] == [repr(one and one[2]) for one in before]


def test_what_is_passed_on_is_one_line_for_every_reader_of_lines(
    taken: list[tuple[bytes, mcp.Message]],
) -> None:
    for _, message in taken:
        line = passed_on(message)

        assert line.endswith(b"\n")
        assert not re.search(rb"[\r\n]", line[:-1])
