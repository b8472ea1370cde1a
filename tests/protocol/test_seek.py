from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.framing import Lines, Oversized
from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.seek import Sought, seek


def oversized(frame: bytes) -> Oversized:
    [cut] = Lines(2048).feed(frame + b"\n")
    assert isinstance(cut, Oversized)
    return cut


BIG = b'{"x":"' + b"y" * 10_000 + b'"}'


A_CALL = Sought(7, False, is_call=True)


@pytest.mark.parametrize(
    ("frame", "sought"),
    [
        (
            b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%b}',
            Sought(7, False, is_call=True),
        ),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "p", "params": %b}', Sought("a", False)),
        (
            b'{"method":"tools/call","params":%b,"jsonrpc":"2.0","id":7}',
            Sought(7, False, is_call=True),
        ),
        (b'{"jsonrpc":"2.0","params":%b,"id" : "x", "method":"p" }', Sought("x", False)),
        (
            b'{"jsonrpc":"2.0","params":%b,"id":"x","method": "tools/call"}',
            Sought("x", False, is_call=True),
        ),
        (
            b'{"jsonrpc":"2.0","id":7,"params":{"task":{},"a":%b},"method":"tools/call"}',
            Sought(7, False),
        ),
        (b'{"jsonrpc":"2.0","id":7,"result":%b}', Sought(7, True)),
        (b'{"result":%b,"jsonrpc":"2.0","id":7}', Sought(7, True)),
        (b'{"jsonrpc":"2.0","method":"p","params":%b}', Sought(None, False)),
        (b'{"jsonrpc":"2.0","id":7,"method":"p","result":%b}', Sought(7, False)),
        (b'{"jsonrpc":"2.0","id":7,"params":%b,"id":8}', Sought(None, False)),
        (b'{"jsonrpc":"2.0","id":null,"params":%b}', Sought(None, False)),
        (b'{"jsonrpc":"2.0","params":{"a":%b,"id":8}}', Sought(None, False)),
        (b'{"jsonrpc":"2.0","params":[%b,"\\",\\"id\\":8}"]}', Sought(None, False)),
        (b"[%b]", Sought(None, None)),
        (b"%b", Sought(None, None)),
    ],
)
def test_the_id_of_an_oversized_frame_is_found_at_its_ends(frame: bytes, sought: Sought) -> None:
    cut = oversized(frame % BIG)

    assert seek(cut.head, cut.tail) == sought


def test_an_id_that_is_cut_by_the_end_of_the_head_is_none() -> None:
    assert seek(b'{"jsonrpc":"2.0","id":12', b"") == Sought(None, None)
    assert seek(b'{"jsonrpc":"2.0","id":12,', b"") == Sought(12, None)


@given(
    own_id=st.integers(-(2**53), 2**53) | st.text(max_size=40),
    order=st.permutations(["jsonrpc", "id", "method", "params"]),
)
def test_a_request_is_never_answered_under_another_id(own_id: int | str, order: list[str]) -> None:
    members = {"jsonrpc": "2.0", "id": own_id, "method": "p", "params": {"id": 1, "x": "y" * 9000}}
    cut = oversized(encode_json({key: members[key] for key in order}))

    assert seek(cut.head, cut.tail).id in (own_id, None)
