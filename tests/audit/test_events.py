from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.audit.chain import MAX_LINE_BYTES, Chain
from callgate.audit.events import (
    OUTCOME,
    SEVERITY,
    TERMINAL,
    Event,
    EventName,
    Record,
    Severity,
    admitted,
    call_fragment,
    call_ids,
    decode_record,
    ended,
    late,
    limit_fragment,
    refused,
    safe_trace_id,
    safe_uuid,
)
from tests.audit.helpers import FRAGMENT, START_NS, call_id

if TYPE_CHECKING:
    import uuid

DESIGN = """v seq ts event severity request_id correlation_id causation_id caller agent tool
run_id policy outcome code limit retry_after_ms queue_ms duration_ms bytes_in bytes_out count
trace_id hash"""
REPLAY = "asked_us timeout_ms first_us last_us usage usage_limit"
RUN_END = "exit_code signal cpu_ms memory_peak_bytes"


def members(body: str) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads("{" + body + "}")
    return parsed


def sealed(body: str) -> Record:
    return decode_record(Chain().seal(body, START_NS))


def test_a_line_has_the_members_of_the_design_and_the_two_of_the_adr() -> None:
    words = f"{DESIGN} {REPLAY} {RUN_END} segment prev"

    assert set(Record.__struct_fields__) == set(words.split())


def test_every_event_has_a_severity() -> None:
    assert set(SEVERITY) == set(get_args(EventName))
    assert set(SEVERITY.values()) <= set(get_args(Severity))


def test_the_terminal_events_are_the_seven_of_the_design() -> None:
    names = ["completed", "failed", "timed_out", "cancelled", "suspended", "crashed", "lost"]
    assert {f"tool.call.{name}" for name in names} == TERMINAL


@pytest.mark.parametrize(
    "extra", ['"arguments":{}', '"message":"x"', '"severity":"loud"', '"count":-1', '"v":3']
)
def test_a_member_or_value_outside_the_schema_is_no_record(extra: str) -> None:
    line = Chain().seal('"event":"policy.loaded"', START_NS)
    decode_record(line)
    with pytest.raises(msgspec.DecodeError):
        decode_record(line.replace(b'"event"', extra.encode() + b',"event"'))


def test_an_unknown_event_is_no_record() -> None:
    with pytest.raises(msgspec.DecodeError):
        sealed('"event":"tool.call.guessed","severity":"info"')


def test_an_event_leaves_out_what_it_does_not_have() -> None:
    body = Event(event="policy.loaded", policy="rev1").body()

    assert members(body) == {"event": "policy.loaded", "severity": "info", "policy": "rev1"}


@given(st.sampled_from(sorted(SEVERITY)))
def test_severity_and_outcome_follow_from_the_event(event: EventName) -> None:
    body = members(Event(event=event, severity="info").body())

    assert body["severity"] == SEVERITY[event]
    assert body.get("outcome") == OUTCOME.get(event)


NAMES = st.text(st.characters(exclude_categories=()), max_size=300)


@given(NAMES, NAMES, NAMES)
def test_no_name_breaks_out_of_its_member(caller: str, agent: str, tool: str) -> None:
    body = admitted(call_fragment(caller, agent, tool, "rev1"), call_id(1), "", 5)

    record = sealed(body)

    assert record.event == "tool.call.admitted"
    assert record.queue_ms == 5
    assert record.caller == caller[:256].encode("utf-8", "replace").decode()


def test_a_quote_in_a_name_stays_inside_it() -> None:
    canary = 'x","code":"injected\n\x00\\'

    fragment = call_fragment(canary, None, None, "rev1")

    assert members(fragment) == {"caller": canary, "policy": "rev1"}
    assert "\n" not in fragment


@given(NAMES, NAMES)
def test_an_event_of_a_cold_path_escapes_its_names(agent: str, code: str) -> None:
    record = sealed(Event(event="agent.run_stopped", agent=agent, code=code).body())

    assert record.agent == agent[:256].encode("utf-8", "replace").decode()


def test_the_longest_names_fit_into_a_line() -> None:
    longest = "\x01" * 1000
    fragment = call_fragment(longest, longest, longest, longest)
    ids = call_ids(call_id(1), call_id(2), "a" * 32)
    body = refused(
        "tool.call.denied",
        fragment,
        call_id(3),
        ids,
        "limit.rate",
        limit_fragment(longest),
        2**63,
        (2**63, 2**63, 2**63),
    )

    assert len(Chain(2**63).seal(body, START_NS)) < MAX_LINE_BYTES


def test_a_call_s_bodies_are_records_of_the_schema() -> None:
    ids = call_ids(call_id(7), call_id(8), "0af7651916cd43dd8448eb211c80319c")

    done = sealed(ended("tool.call.failed", FRAGMENT, call_id(1), ids, 12, "tool.failed", 3, 4))
    no = sealed(
        refused(
            "tool.call.denied",
            FRAGMENT,
            call_id(1),
            ids,
            "limit.rate",
            limit_fragment("r"),
            9,
            (2, 5, 6),
        )
    )

    assert (done.outcome, done.code, done.duration_ms) == ("error", "tool.failed", 12)
    assert (done.bytes_in, done.bytes_out) == (3, 4)
    assert (done.correlation_id, done.causation_id) == (call_id(7), call_id(8))
    assert (no.limit, no.retry_after_ms, no.count, no.outcome) == ("r", 9, 2, "denied")
    assert sealed(late(FRAGMENT, call_id(1), ids, 4)).duration_ms == 4


@given(st.uuids())
def test_every_spelling_of_a_uuid_becomes_the_canonical_one(value: uuid.UUID) -> None:
    for text in (str(value), value.hex, value.urn, f"{{{value}}}", str(value).upper()):
        assert safe_uuid(text) == str(value)


@given(st.text())
def test_what_is_no_uuid_is_not_kept(text: str) -> None:
    found = safe_uuid(text)
    assert found is None or re.fullmatch(r"[0-9a-f-]{36}", found)


@pytest.mark.parametrize(
    "text", ["", "secret", call_id(1) + "\n", call_id(1) + "x", "٣" * 32, "0x" + "0" * 30, "_" * 32]
)
def test_text_beside_a_uuid_is_not_kept(text: str) -> None:
    assert safe_uuid(text) is None


def test_a_trace_id_is_32_hex_digits() -> None:
    assert safe_trace_id("a" * 32) == "a" * 32
    assert safe_trace_id("a" * 31 + '"') is None
    assert safe_trace_id("a" * 32 + "\n") is None
