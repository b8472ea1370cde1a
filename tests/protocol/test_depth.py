from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol import depth as depth_module
from callgate.protocol import jsonrpc, mcp, runtime
from callgate.protocol.depth import MAX_DEPTH, MAX_PLAIN_BYTES, is_too_deep
from callgate.protocol.problem import ProtocolError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = 4
"""Enough to try every case of a bound that is 256 in use."""

tricky = st.text(st.sampled_from('[]{}"\\\\:,a\n\u00e9'), max_size=12)
values = st.recursive(
    st.none() | st.integers() | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=20,
)
layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}])


def levels(value: Any) -> int:
    """Count them the slow way."""
    if isinstance(value, list):
        return 1 + max(map(levels, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 0


def nested(count: int, inside: str = "1") -> str:
    return "[" * count + inside + "]" * count


@given(values, layouts, st.integers(0, 2 * LEVELS))
def test_the_look_counts_what_a_reader_would(
    value: Any, layout: dict[str, Any], around: int
) -> None:
    for _ in range(around):
        value = [value]
    text = json.dumps(value, **layout).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(depth_module, "MAX_DEPTH", LEVELS)
        patched.setattr(depth_module, "MAX_PLAIN_BYTES", 2 * LEVELS)

        assert is_too_deep(text) is (levels(value) > LEVELS)


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b'"', b"\\", b"a", b'""', b'\\"']), max_size=40))
def test_what_is_no_json_is_never_read_deeper_than_the_look_saw(parts: list[bytes]) -> None:
    """A reader stops at the first error: up to there both see the same levels."""
    text = b"".join(parts)
    deepest = depth = 0
    in_string = escaped = False
    for byte in text:
        char = chr(byte)
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char == "]":
            depth -= 1
        elif char == '"':
            in_string = True
        elif char == "\\":
            break  # here every reader ends
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(depth_module, "MAX_DEPTH", LEVELS)
        patched.setattr(depth_module, "MAX_PLAIN_BYTES", 0)

        assert is_too_deep(text) or deepest <= LEVELS


@pytest.mark.parametrize("inside", ["1", '"' + "[" * 1000 + '"', '"\\\\",[[],{}],"\\"[["'])
def test_the_bound_stands_where_it_is_said_to(inside: str) -> None:
    blanks = " " * MAX_PLAIN_BYTES

    assert not is_too_deep((nested(MAX_DEPTH - 3, inside) + blanks).encode())
    assert is_too_deep((nested(MAX_DEPTH + 1, inside) + blanks).encode())


def test_side_by_side_is_not_inside_each_other() -> None:
    assert not is_too_deep(b"[" + b"[{}]," * 10_000 + b"{}]")


@pytest.mark.parametrize(
    "decode",
    [mcp.decode, jsonrpc.decode, lambda data: runtime.decode(data, "agent")],
    ids=["mcp", "jsonrpc", "runtime"],
)
@pytest.mark.parametrize("levels_inside", [MAX_DEPTH, sys.getrecursionlimit() - 120, 100_000])
def test_a_frame_that_is_too_deep_is_refused_and_its_id_is_found(
    decode: Callable[[bytes], object], levels_inside: int
) -> None:
    deep = nested(levels_inside).encode()
    text = b'{"jsonrpc":"2.0","v":1,"type":"agent.pong","id":"7","ts":"","payload":%b}' % deep

    with pytest.raises(ProtocolError) as caught:
        decode(text)

    assert (caught.value.reason, caught.value.id) == (Reason.DEPTH, "7")
