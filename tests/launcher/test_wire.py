"""Messages between callgate and a warden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callgate.launcher.warden.warden_messages import MessageDecoder, frame, pack_fds, unpack_fds

MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=8), st.integers() | st.text() | st.binary() | st.none()),
    max_size=5,
)


@given(MESSAGES, st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[dict[str, object]], cuts: list[int]
) -> None:
    data = b"".join(frame(message) for message in messages)
    found: list[dict[str, object]] = []
    frames, at = MessageDecoder(), 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        found += frames.feed(data[at : at + size])
        at += size

    assert found == messages


@given(st.lists(st.integers(0, 2**31 - 1), max_size=32))
def test_descriptors_go_there_and_back(fds: list[int]) -> None:
    assert unpack_fds(pack_fds(fds)) == fds


def test_a_piece_of_a_descriptor_is_none() -> None:
    assert unpack_fds(pack_fds([7]) + b"\1\2") == [7]
