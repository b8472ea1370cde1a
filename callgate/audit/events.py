"""What may be written down: a closed set of events with a closed set of members.

Pure. A *body* is the text of a line's members without braces and without `v`, `seq`, `ts`
and `hash`, which the chain adds. Cold paths build an `Event` and ask for its `body()`; the
path of a call uses the functions below, which paste numbers and our own ids into text that
was escaped once for a lane. Nothing that a peer wrote may reach them: names go through
`call_fragment`, ids through `safe_uuid`, and codes are constants of `errors`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args

import msgspec

EventName = Literal[
    "tool.call.admitted",
    "tool.call.completed",
    "tool.call.failed",
    "tool.call.denied",
    "tool.call.timed_out",
    "tool.call.cancelled",
    "tool.call.crashed",
    "tool.call.lost",
    "tool.call.suspended",
    "tool.call.carried",
    "tool.call.late",
    "tool.call.would_deny",
    "agent.run_started",
    "agent.run_stopped",
    "agent.run_crashed",
    "agent.run_paused",
    "agent.resource_warning",
    "agent.connected",
    "agent.handshake_failed",
    "agent.heartbeat_missed",
    "agent.marked_unhealthy",
    "agent.recovered",
    "agent.containment_degraded",
    "protocol.frame_rejected",
    "security.denied",
    "security.tool_changed",
    "state.lost",
    "state.recovered",
    "policy.loaded",
    "policy.loosened",
    "policy.reload_failed",
    "audit.started",
    "audit.recovered",
    "audit.segment_closed",
    "audit.segment_deleted",
]
Severity = Literal["info", "warn", "error", "security"]
Outcome = Literal["ok", "error", "cancelled", "denied", "unknown"]
Terminal = Literal[
    "tool.call.completed",
    "tool.call.failed",
    "tool.call.timed_out",
    "tool.call.cancelled",
    "tool.call.suspended",
    "tool.call.crashed",
    "tool.call.lost",
]
Refusal = Literal["tool.call.denied", "tool.call.would_deny"]

ADMITTED: Final = "tool.call.admitted"
CARRIED: Final = "tool.call.carried"
FLUSHED: Final = "audit.max_bytes"
"""Code of `audit.segment_deleted`: for space, before its time was over."""
TERMINAL: Final[frozenset[str]] = frozenset(get_args(Terminal))

SEVERITY: Final[dict[EventName, Severity]] = {
    **dict.fromkeys(get_args(EventName), "info"),
    "tool.call.failed": "warn",
    "tool.call.denied": "warn",
    "tool.call.timed_out": "warn",
    "tool.call.crashed": "error",
    "tool.call.lost": "error",
    "agent.run_crashed": "error",
    "agent.run_paused": "warn",
    "agent.resource_warning": "warn",
    "agent.handshake_failed": "error",
    "agent.heartbeat_missed": "warn",
    "agent.marked_unhealthy": "error",
    "agent.containment_degraded": "security",
    "protocol.frame_rejected": "security",
    "security.denied": "security",
    "security.tool_changed": "security",
    "state.lost": "error",
    "policy.loosened": "security",
    "policy.reload_failed": "error",
    "audit.recovered": "warn",
}


def severity_of(event: EventName, code: str | None = None) -> Severity:
    """Return the severity of an event: nobody flushes history unseen."""
    if event == "audit.segment_deleted" and code == FLUSHED:
        return "security"
    return SEVERITY[event]


OUTCOME: Final[dict[EventName, Outcome]] = {
    "tool.call.completed": "ok",
    "tool.call.failed": "error",
    "tool.call.denied": "denied",
    "tool.call.timed_out": "error",
    "tool.call.cancelled": "cancelled",
    "tool.call.crashed": "error",
    "tool.call.suspended": "unknown",
    "tool.call.lost": "unknown",
}

MAX_INTEGER: Final = 2**53 - 1
"""What every reader of JSON keeps exactly; a caller may ask for any number."""

MAX_NAME_CHARS: Final = 256
"""Names come from the policy; twice the longest tool name leaves room for `agent/tool`."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
Uuid = Annotated[str, msgspec.Meta(pattern=f"^{_UUID}$")]
Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
TraceId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """One thing that happened. A member that is None is left out of the line."""

    event: EventName
    severity: Severity | None = None
    """Left to us: it follows from the event and the code."""
    request_id: Uuid | None = None
    correlation_id: Uuid | None = None
    causation_id: Uuid | None = None
    caller: Name | None = None
    agent: Name | None = None
    tool: Name | None = None
    run_id: Name | None = None
    policy: Name | None = None
    outcome: Outcome | None = None
    code: Name | None = None
    limit: Name | None = None
    retry_after_ms: Count | None = None
    queue_ms: Count | None = None
    asked_us: Count | None = None
    """When a call arrived: microseconds of the wall clock since 1970."""
    timeout_ms: Count | None = None
    """The time that a call asked for itself."""
    duration_ms: Count | None = None
    bytes_in: Count | None = None
    bytes_out: Count | None = None
    count: Count | None = None
    first_us: Count | None = None
    last_us: Count | None = None
    """When the first and the last of `count` refusals came."""
    usage: Count | None = None
    usage_limit: Count | None = None
    """Of a resource: how much was in use, and how much may be, in the unit of its limit."""
    exit_code: Count | None = None
    signal: Count | None = None
    cpu_ms: Count | None = None
    memory_peak_bytes: Count | None = None
    """Of a run that ended: how, and what it used."""
    trace_id: TraceId | None = None
    segment: Name | None = None
    """`audit.*` only: which segment, as `<writer>/<number>`, or which writer."""
    prev: Hash | None = None
    """A segment's first line only: the hash before it, so that it verifies alone."""

    def body(self) -> str:
        """The members as text for the chain."""
        fields = {
            name: clean(value) if isinstance(value, str) else value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }
        fields["severity"] = severity_of(self.event, self.code)
        if "outcome" not in fields and self.event in OUTCOME:
            fields["outcome"] = OUTCOME[self.event]
        return _ENCODER.encode(fields)[1:-1].decode()


class Record(Event, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole line, as a reader sees it. Anything else in a line is an error."""

    v: Literal[1, 2]
    seq: Annotated[int, msgspec.Meta(ge=1)]
    ts: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")]
    hash: Hash


_ENCODER: Final = msgspec.json.Encoder()
decode_record: Final = msgspec.json.Decoder(Record).decode
"""Line → Record; raises `msgspec.DecodeError` for what the schema does not allow."""


def clean(text: str) -> str:
    """Text that every JSON reader accepts: valid Unicode, of bounded length."""
    return text[:MAX_NAME_CHARS].encode("utf-8", "replace").decode()


def quote(text: str) -> str:
    """The text as a JSON string."""
    return _ENCODER.encode(clean(text)).decode()


_CANONICAL: Final = re.compile(_UUID, re.ASCII).fullmatch
_HEX32: Final = re.compile(r"[0-9a-f]{32}", re.ASCII).fullmatch


def safe_uuid(text: str) -> str | None:
    """The UUID in its canonical spelling, or None for anything that is not one."""
    if _CANONICAL(text):
        return text
    digits = text.lower().removeprefix("urn:uuid:").removeprefix("{").removesuffix("}")
    digits = digits.replace("-", "")
    if not _HEX32(digits):
        return None
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def safe_trace_id(text: str) -> str | None:
    """A W3C trace id, or None."""
    return text if _HEX32(text) else None


def call_fragment(caller: str, agent: str | None, tool: str | None, policy: str) -> str:
    """The members that all records of a lane share, escaped once."""
    text = f'"caller":{quote(caller)}'
    if agent is not None:
        text += f',"agent":{quote(agent)}'
    if tool is not None:
        text += f',"tool":{quote(tool)}'
    return f'{text},"policy":{quote(policy)}'


def call_ids(
    correlation_id: str | None = None,
    causation_id: str | None = None,
    trace_id: str | None = None,
) -> str:
    """The members that all records of a call share; the ids come from `safe_uuid`."""
    text = ""
    if correlation_id is not None:
        text = f',"correlation_id":"{correlation_id}"'
    if causation_id is not None:
        text += f',"causation_id":"{causation_id}"'
    if trace_id is not None:
        text += f',"trace_id":"{trace_id}"'
    return text


def limit_fragment(limit: str) -> str:
    """A limit's name as `refused` wants it, escaped once."""
    return f',"limit":{quote(limit)}'


def admitted(
    fragment: str,
    request_id: str,
    ids: str = "",
    queue_ms: int = 0,
    asked_us: int = 0,
    timeout_ms: int | None = None,
) -> str:
    """Return the body of `tool.call.admitted`."""
    text = (
        f'"event":"tool.call.admitted","severity":"info","request_id":"{request_id}"'
        f'{ids},{fragment},"queue_ms":{queue_ms},"asked_us":{asked_us}'
    )
    if timeout_ms is None:
        return text
    return f'{text},"timeout_ms":{min(timeout_ms, MAX_INTEGER)}'


def _prefix(event: EventName) -> str:
    text = f'"event":"{event}","severity":"{SEVERITY[event]}"'
    if event in OUTCOME:
        text += f',"outcome":"{OUTCOME[event]}"'
    return f'{text},"request_id":"'


_PREFIX: Final[dict[str, str]] = {
    event: _prefix(event) for event in SEVERITY if event.startswith("tool.call.")
}


def ended(
    event: Terminal,
    fragment: str,
    request_id: str,
    ids: str = "",
    duration_ms: int = 0,
    code: str | None = None,
    bytes_in: int | None = None,
    bytes_out: int | None = None,
) -> str:
    """Body of the one terminal event of any call."""
    text = f'{_PREFIX[event]}{request_id}"{ids},{fragment},"duration_ms":{duration_ms}'
    if code is not None:
        text += f',"code":"{code}"'
    return text + _sizes(bytes_in, bytes_out)


_ID: Final = '"request_id":"'


def call_of(body: str) -> str:
    """Return the id of the call that a body is about."""
    at = body.index(_ID) + 14
    return body[at : at + 36]


def begins_call(body: str) -> bool:
    """Return True for the body of `tool.call.admitted`."""
    return body.startswith(_PREFIX[ADMITTED])


def ends_call(body: str) -> bool:
    """Return True for the body of the terminal event of a call."""
    return body.startswith(_ENDS)


_ENDS: Final = tuple(_PREFIX[event] for event in TERMINAL)


def repeated(event: Literal["tool.call.carried", "tool.call.lost"], body: str) -> str:
    """Return the body of another event of a call, with the members that it was admitted with."""
    return _PREFIX[event] + body.partition(_ID)[2]


_COMPLETED: Final = _PREFIX["tool.call.completed"]


def completed(
    fragment: str,
    request_id: str,
    ids: str = "",
    duration_ms: int = 0,
    bytes_in: int | None = None,
    bytes_out: int | None = None,
) -> str:
    """The same for a call that ended well, as most do."""
    text = f'{_COMPLETED}{request_id}"{ids},{fragment},"duration_ms":{duration_ms}'
    if bytes_in is None and bytes_out is None:
        return text
    if bytes_in is not None and bytes_out is not None:
        return f'{text},"bytes_in":{bytes_in},"bytes_out":{bytes_out}'
    return text + _sizes(bytes_in, bytes_out)


def _sizes(bytes_in: int | None, bytes_out: int | None) -> str:
    text = "" if bytes_in is None else f',"bytes_in":{bytes_in}'
    return text if bytes_out is None else f'{text},"bytes_out":{bytes_out}'


def refused(
    event: Refusal,
    fragment: str,
    request_id: str,
    ids: str,
    code: str,
    limit: str = "",
    retry_after_ms: int | None = None,
    merged: tuple[int, int, int] | None = None,
) -> str:
    """Return the body of a refusal, or of one that shadow mode let pass.

    `limit` comes from `limit_fragment`. `merged` is for a record that stands for several refusals
    of the lane, this one included: how many, and when the first and the last came.
    """
    text = f'{_PREFIX[event]}{request_id}"{ids},{fragment},"code":"{code}"{limit}'
    if retry_after_ms is not None:
        text += f',"retry_after_ms":{retry_after_ms}'
    if merged is not None:
        count, first_us, last_us = merged
        text += f',"count":{count},"first_us":{first_us},"last_us":{last_us}'
    return text


def late(fragment: str, request_id: str, ids: str = "", duration_ms: int = 0) -> str:
    """Body of an answer that came after its call had been settled."""
    return (
        f'"event":"tool.call.late","severity":"info","request_id":"{request_id}"'
        f'{ids},{fragment},"duration_ms":{duration_ms}'
    )
