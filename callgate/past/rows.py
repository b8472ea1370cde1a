"""Records as a reader of the past wants them, and the questions that pick some of them.

Pure. A log may have been written by somebody else, or be damaged: a line that is not a record is
counted and left out; every name in a row is foreign text, to be quoted where it is shown.

A *call* is told by the one record that ended it or refused it. So one line is enough to show it,
and calls are counted right however the log was cut by retention.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from callgate.audit.events import OUTCOME, TERMINAL
from callgate.policy.units import duration_ns

DENIED: Final = "tool.call.denied"
WOULD_DENY: Final = "tool.call.would_deny"
ENDS: Final = TERMINAL | {DENIED}
"""The events that tell a call: each admitted call has one of them in the end."""

OUTCOMES: Final = ("ok", "error", "cancelled", "denied", "unknown", "would_deny")


class Row(msgspec.Struct, frozen=True, gc=False):
    """A record, in version 1 or 2, without what only its chain needs."""

    seq: int
    ts: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]
    event: str
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    caller: str | None = None
    agent: str | None = None
    tool: str | None = None
    run_id: str | None = None
    outcome: str | None = None
    code: str | None = None
    limit: str | None = None
    retry_after_ms: int | None = None
    queue_ms: int | None = None
    duration_ms: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    count: int | None = None
    usage: int | None = None
    usage_limit: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None
    segment: str | None = None
    prev: str | None = None

    @property
    def result(self) -> str:
        """How the call ended, in one word."""
        if self.event == WOULD_DENY:
            return "would_deny"
        return self.outcome or OUTCOME.get(self.event, "")  # type: ignore[call-overload]

    @property
    def times(self) -> int:
        """How many calls this record stands for: refusals may have been merged."""
        return max(1, self.count or 1)


decode_row: Final = msgspec.json.Decoder(Row).decode
"""Line → Row; raises `msgspec.DecodeError` for what is no record."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are asked for; a member that is None asks for all."""

    events: frozenset[str] = ENDS
    signs: frozenset[str] | None = None
    """A segment without any of these events is not read; None is `events`."""
    since: str | None = None
    """A time stamp as records have it."""
    agent: str | None = None
    tool: str | None = None
    caller: str | None = None
    outcome: str | None = None
    code: str | None = None
    request_id: str | None = None

    def wants(self, row: Row) -> bool:
        """Return True if the record is one of those asked for."""
        return (
            row.event in self.events
            and (self.since is None or row.ts >= self.since)
            and (self.agent is None or row.agent == self.agent)
            and (self.tool is None or row.tool == self.tool)
            and (self.caller is None or row.caller == self.caller)
            and (self.outcome is None or row.result == self.outcome)
            and (self.code is None or row.code == self.code)
            and (self.request_id is None or row.request_id == self.request_id)
        )

    @property
    def needle(self) -> bytes | None:
        """Return bytes that each line asked for has in it, to look for before decoding."""
        return None if self.request_id is None else f'"{self.request_id}"'.encode()


_AGO: Final = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|d)")


def stamp(wall_ns: int) -> str:
    """Return a moment of the wall clock as records spell it."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns // 1000:06d}Z"


def since_stamp(text: str, now_ns: int) -> str:
    """Return the time stamp that `2h`, `2026-11-20` or `2026-11-20T08:00` means.

    A date without a zone is the reader's own. Raises `ValueError`, which says what is expected.
    """
    text = text.strip()
    try:
        if _AGO.fullmatch(text):
            return stamp(max(0, now_ns - duration_ns(text)))
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        message = "expected how long ago (15m, 2h, 7d) or a time (2026-11-20, 2026-11-20T08:00)"
        raise ValueError(message) from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"
