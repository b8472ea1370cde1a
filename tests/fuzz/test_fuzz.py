from __future__ import annotations

import pytest

from callgate.protocol import mcp, mcp_encode
from callgate.protocol.problem import Reason
from tests.conftest import FULL
from tests.fuzz.run import GOOD_CALL, Broken, Fuzz, Report, try_both_ways, try_mcp

FRAMES = 1_000_000 if FULL else 40_000


def test_no_frame_gets_anything_but_an_answer_or_a_protocol_error() -> None:
    report = Fuzz(seed=7).run(FRAMES)

    assert report.ok
    assert report.frames >= FRAMES
    assert set(report.taken) >= {
        "CallTool",
        "Response",
        "Request",
        "Notification",
        "Cancelled",
        "Progress",
        "agent.tool.result",
        "agent.tools.register",
    }
    assert report.oversized


def test_the_frames_reach_the_reasons() -> None:
    report = Fuzz(seed=8).run(FRAMES)

    assert set(report.refused) >= set(Reason) - {Reason.ARGUMENTS, Reason.RESULT}


def test_a_codec_that_lets_a_double_through_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_encode, "encode_json", lambda _: b'"other"')

    with pytest.raises(Broken, match="another tool"):
        try_mcp(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}}',
            Report(),
        )


def test_a_shortcut_that_takes_a_double_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    again = b'"jsonrpc":"2.0",'
    double = GOOD_CALL.replace(again, again * 2)
    try_both_ways(double, Report())
    monkeypatch.setattr(mcp, "CALL_BYTES", mcp.CALL_BYTES + len(again))

    with pytest.raises(Broken, match="by the shortcut"):
        try_both_ways(double, Report())


def test_a_codec_that_crashes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: bytes) -> None:
        raise KeyError

    monkeypatch.setattr(mcp, "_read", crash)

    with pytest.raises(Broken, match="KeyError"):
        Fuzz(seed=1).run(1)


def test_a_refusal_is_no_crash() -> None:
    report = Report()

    try_mcp(b"nonsense", report)

    assert report.refused == {Reason.JSON: 1}
