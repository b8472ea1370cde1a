"""A call on the wire: whose id it has where, and that it is answered once."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate.audit import writer as writer_module
from callgate.limits.deadlines import COARSE_NS
from tests.peers.helpers import (
    MS,
    STATELESS,
    answer,
    call,
    cancel,
    code_of,
    events,
    failure,
    initialize,
    initialized,
    note,
    progress,
    refusal_of,
    request,
    rig,
    text,
    tool_list,
)
from tests.router.helpers import audit_lines, used_slots

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

ONE = """
version: 1
defaults: {timeout: 10s, max_timeout: 60s, concurrency: 1, queue: 5, rate: unlimited}
agents: {web: {}}
"""


@pytest.mark.parametrize("own_id", [7, 0, -3, 2**53, "seven", "7", ""])
async def test_the_agent_sees_an_id_of_ours_and_the_client_its_own(
    own_id: Any, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(own_id))
        sent = gate.one_to_agent()

        gate.agent(answer(sent["id"], text("done")))

        assert sent["id"] == 1
        assert gate.one_to_client() == answer(own_id, text("done"))
        gate.assert_idle()


async def test_arguments_and_unknown_members_pass_as_they_are(tmp_path: Path, clock: Clock) -> None:
    message = call(1, "echo", {"deep": [1, {"ü": None}], "big": 1e300})
    message["params"]["later"] = {"added": True}
    async with rig(tmp_path, clock) as gate:
        gate.client(message)

        assert gate.one_to_agent()["params"] == message["params"]


async def test_a_progress_token_is_ours_there_and_the_clients_here(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a", progressToken="mine"))
        sent = gate.one_to_agent()
        token = sent["params"]["_meta"]["progressToken"]

        gate.agent(progress(token, 3))

        assert token == sent["id"]
        assert gate.one_to_client() == progress("mine", 3)


async def test_progress_that_nobody_asked_for_goes_nowhere(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))

        gate.agent(progress(1), progress("x"), progress(99))

        assert gate.to_client() == []
        assert gate.hub.stray == 3


async def test_progress_after_the_answer_goes_nowhere(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, progressToken=5))
        gate.agent(answer(1))
        gate.to_client()

        gate.agent(progress(1))

        assert gate.to_client() == []


async def test_answers_come_back_in_any_order(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"), call("c"))

        gate.agent(answer(3, text("third")), answer(1, text("first")), answer(2, text("second")))

        assert gate.to_client() == [
            answer("c", text("third")),
            answer("a", text("first")),
            answer("b", text("second")),
        ]
        gate.assert_idle()


async def test_a_second_answer_reaches_nobody(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        gate.agent(answer(1, text("one")), answer(1, text("two")))

        assert gate.to_client() == [answer("a", text("one"))]
        assert gate.hub.stray == 1


@pytest.mark.parametrize("own_id", [0, 2, 99, -1, "1", "a"])
async def test_an_answer_to_nothing_is_counted_and_no_more(
    own_id: Any, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        gate.agent(answer(own_id))

        assert gate.to_client() == []
        assert gate.hub.stray == 1


async def test_an_id_in_flight_is_refused_and_its_first_use_goes_on(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("a"))
        assert len(gate.to_agent()) == 1
        assert code_of(gate.one_to_client()) == "protocol.invalid"

        gate.agent(answer(1, text("first")))

        assert gate.one_to_client() == answer("a", text("first"))
        gate.assert_idle()
    assert events(tmp_path, "tool.call.") == ["admitted", "denied", "completed"]


async def test_a_number_and_its_text_are_two_ids(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), call("1"))

        assert len(gate.to_agent()) == 2


async def test_an_answered_id_may_be_used_again(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1))
        gate.agent(answer(1))
        gate.to_agent()

        gate.client(call(1))

        assert gate.one_to_agent()["id"] == 2


async def test_a_request_under_a_calls_id_is_refused(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1), request(1, "ping"))

        assert [message["method"] for message in gate.to_agent()] == ["tools/call"]
        assert gate.one_to_client()["error"]["code"] == -32600


async def test_a_tools_own_error_passes_unchanged_and_only_its_code_is_written(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), call("b"))

        gate.agent(failure(1, -32050, "no luck"), answer(2, text("bad", isError=True)))

        assert gate.to_client() == [
            failure("a", -32050, "no luck"),
            answer("b", text("bad", isError=True)),
        ]
    ends = [line for line in audit_lines(tmp_path / "audit") if "failed" in line["event"]]
    assert [line["code"] for line in ends] == ["tool.failed", "tool.failed"]


@pytest.mark.parametrize(("calls", "passes"), [(10, [10]), (150, [64, 64, 22])])
async def test_a_pass_is_one_write_for_each_and_a_read_of_many_frames_is_several_passes(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, calls: int, passes: list[int]
) -> None:
    audit: list[bytes] = []

    def counted(fd: int, data: bytes) -> int:
        audit.append(data)
        return os.write(fd, data)

    async with rig(tmp_path, clock) as gate:
        monkeypatch.setattr(writer_module, "os_write", counted)

        gate.client(*(call(number) for number in range(calls)))
        gate.agent(*(answer(number + 1) for number in range(calls)))

        assert [data.count(b"\n") for data in audit] == passes + passes
        assert [data.count(b"\n") for data in gate.agent_pipe.writes] == passes
        assert [data.count(b"\n") for data in gate.client_pipe.writes] == passes


async def test_the_record_is_there_before_the_answer_is(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list[str]]] = []
    async with rig(tmp_path, clock) as gate:
        for name, pipe in (("agent", gate.agent_pipe), ("client", gate.client_pipe)):

            def write(*_: Any, who: str = name) -> None:
                seen.append((who, events(tmp_path, "tool.call.")))

            monkeypatch.setattr(pipe, "write", write)

        gate.client(call(1))
        gate.agent(answer(1))

    assert seen == [("agent", ["admitted"]), ("client", ["admitted", "completed"])]


async def test_a_deadline_answers_the_caller_and_cancels_the_work(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))
        gate.to_agent()

        gate.pass_ms(10_000)

        refusal = gate.one_to_client()
        assert (refusal["id"], code_of(refusal)) == ("a", "limit.timeout")
        assert refusal_of(refusal)["limit"]["limit"] == 10_000
        assert gate.to_agent() == [cancel(1)]
    assert events(tmp_path, "tool.call.") == ["admitted", "timed_out"]


async def test_a_deadline_is_never_early(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"))

        clock.now_ns += 10_000 * MS - 1
        gate.router.timer._wake()

        assert gate.to_client() == []


async def test_an_answer_after_the_deadline_is_late_and_frees_the_slot(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a"))
        gate.pass_ms(10_000)
        gate.to_client()
        assert used_slots(gate.router) == {"agent:web": 1}

        gate.agent(answer(1))

        assert gate.to_client() == []
        gate.assert_idle()
    assert events(tmp_path, "tool.call.") == ["admitted", "timed_out", "late"]


async def test_a_call_asks_for_its_time_and_the_rest_of_it_is_passed_on(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call(1), call(2, **{"callgate/timeout_ms": 5_000}))
        assert "_meta" not in gate.one_to_agent()["params"]

        clock.now_ns += 2_000 * MS
        gate.agent(answer(1))

        assert gate.one_to_agent()["params"]["_meta"]["callgate/timeout_ms"] == 3_000


async def test_queueing_spends_the_deadline(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a", **{"callgate/timeout_ms": 60_000}), call("b"))
        gate.to_agent()

        gate.pass_ms(10_000)

        refusal = gate.one_to_client()
        assert (refusal["id"], code_of(refusal)) == ("b", "limit.concurrency")
        assert gate.to_agent() == []


async def test_whoever_waits_goes_when_a_place_is_free(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(call("a"), call("b"), call("c"))
        assert len(gate.to_agent()) == 1

        gate.agent(answer(1))

        assert gate.one_to_agent()["id"] == 2
        gate.agent(answer(2, text("b")))
        assert gate.to_client() == [answer("a"), answer("b", text("b"))]
        gate.agent(answer(3))
        gate.assert_idle()


async def test_a_full_queue_refuses(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock, ONE) as gate:
        gate.client(*(call(number) for number in range(7)))

        assert [code_of(message) for message in gate.to_client()] == ["limit.concurrency"]


async def test_a_rate_refuses_readably_and_says_when(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {rate: 1/second, concurrency: 9}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call(1), call(2))

        message = gate.one_to_client()
        refusal = refusal_of(message)
        words = message["result"]["content"][0]["text"]
        assert (refusal["code"], refusal["retryable"]) == ("limit.rate", True)
        assert refusal["retry_after_ms"] == 1_000
        assert words == "rate limit of agent web reached: 1/second; try again in 1.0 s"


async def test_a_paced_call_goes_when_its_time_has_come(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {rate: {limit: 1/second, on_limit: wait}, queue: 5}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call(1), call(2))
        assert len(gate.to_agent()) == 1

        gate.pass_ms(1_000)

        assert gate.one_to_agent()["id"] == 2


async def test_refusals_are_errors_if_the_policy_says_so(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {denials: error, tools: {no: deny}}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call("a", "no"))

        error = gate.one_to_client()["error"]
        assert (error["code"], error["data"]["code"]) == (-32009, "policy.denied")
        assert error["data"]["tool"] == "no"


async def test_a_refusal_of_the_stateless_era_is_complete(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {tools: {no: deny}}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call(1, "no", **STATELESS), call(2, "no"))

        modern, legacy = gate.to_client()
        assert modern["result"]["resultType"] == "complete"
        assert "resultType" not in legacy["result"]


async def test_a_task_is_refused_unless_the_policy_lets_it_pass(
    tmp_path: Path, clock: Clock
) -> None:
    message = call(1)
    message["params"]["task"] = {"ttl": 1000}
    async with rig(tmp_path, clock) as gate:
        gate.client(message)
        assert code_of(gate.one_to_client()) == "policy.denied"
        assert gate.to_agent() == []
    policy = "version: 1\nagents: {web: {tasks: pass}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(message)
        assert gate.one_to_agent()["params"]["task"] == {"ttl": 1000}


async def test_arguments_over_their_limit_are_refused(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {max_input_bytes: 100}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call(1, arguments={"x": "y" * 100}), call(2, arguments={"x": "y" * 50}))

        assert code_of(gate.one_to_client()) == "limit.input_bytes"
        assert len(gate.to_agent()) == 1


async def test_a_result_over_its_limit_is_withheld(tmp_path: Path, clock: Clock) -> None:
    policy = "version: 1\nagents: {web: {max_output_bytes: 100}}\n"
    async with rig(tmp_path, clock, policy) as gate:
        gate.client(call(1), call(2))

        gate.agent(answer(1, text("y" * 100)), answer(2, text("y")))

        refused, passed = gate.to_client()
        assert code_of(refused) == "limit.output_bytes"
        assert passed == answer(2, text("y"))
        gate.assert_idle()


async def test_deadlines_of_answered_calls_leave_nothing_behind(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        for number in range(1, 200):
            gate.client(call(number))
            gate.agent(answer(number))
            clock.now_ns += COARSE_NS

        gate.pass_ms(60_000)

        gate.assert_idle()
        assert gate.hub.stray == 0


async def test_an_answered_call_leaves_no_work_to_the_garbage_collector(
    tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(0))
        gate.agent(answer(1))
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 201):
                gate.client(call(number))
                gate.agent(answer(number + 1))

            found = gc.collect()
        finally:
            gc.enable()

        assert found < 200


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def test_a_trace_passes_and_is_in_the_audit(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, traceparent=PARENT))
        gate.agent(answer(1))

        assert gate.one_to_agent()["params"]["_meta"] == {"traceparent": PARENT}
    traced = [line["trace_id"] for line in audit_lines(tmp_path / "audit") if "trace_id" in line]
    assert traced == [TRACE, TRACE]


CORRELATION = "0190b7a2-7c5b-7d00-8000-000000000001"


@pytest.mark.parametrize(
    ("said", "recorded"),
    [
        (CORRELATION, CORRELATION),
        (CORRELATION.upper(), CORRELATION),
        ("a text of the client", None),
        (5, None),
        (None, None),
    ],
)
async def test_a_correlation_id_is_in_the_audit_if_it_is_a_uuid(
    said: object, recorded: str | None, tmp_path: Path, clock: Clock
) -> None:
    async with rig(tmp_path, clock) as gate:
        gate.client(call(1, **{"callgate/correlation_id": said, "traceparent": PARENT}))
        gate.agent(answer(gate.one_to_agent()["id"]))

    calls = [line for line in audit_lines(tmp_path / "audit") if "request_id" in line]
    assert {line.get("correlation_id") for line in calls} == {recorded}
    assert {line["trace_id"] for line in calls} == {PARENT.split("-")[1]}


@pytest.mark.parametrize("meta", [{}, {"traceparent": PARENT, "kept": 1, "progressToken": 7}])
async def test_a_span_of_ours_stands_between_the_clients_and_the_agents(
    meta: dict[str, Any], tmp_path: Path, clock: Clock
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with rig(tmp_path, clock, tracer_provider=provider) as gate:
        gate.client(call(1, **meta))
        sent = gate.one_to_agent()["params"]["_meta"]
        gate.agent(answer(1))

    (span,) = spans.get_finished_spans()
    assert span.context is not None
    ours = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
    assert sent.pop("traceparent").startswith(ours)
    assert (TRACE in ours) == bool(meta)
    assert sent == ({"kept": 1, "progressToken": 1} if meta else {})


async def test_it_is_told_when_nothing_is_in_flight_any_more(tmp_path: Path, clock: Clock) -> None:
    told: list[bool] = []
    async with rig(tmp_path, clock) as gate:
        gate.client(call("a"), request("r", "ping"))
        gate.caller.on_idle = lambda: told.append(True)
        gate.agent(answer(1))
        assert told == []

        gate.agent(answer(2, {}))

        assert told == [True]


async def test_an_agent_that_the_policy_does_not_name_is_one_agent_from_its_first_call_on(
    tmp_path: Path, clock: Clock
) -> None:
    """Else what it did before its tools were listed would not count afterwards."""
    unnamed = "version: 1\ndefaults: {concurrency: 1, queue: 0}\n"
    async with rig(tmp_path, clock, unnamed) as gate:
        gate.client(initialize())
        gate.agent(answer(gate.one_to_agent()["id"], initialized()))
        gate.client(note("notifications/initialized"), call("first"))
        _, listing, first = gate.to_agent()
        gate.to_client()

        gate.agent(answer(listing["id"], tool_list("echo")))
        gate.client(call("second"))

        assert code_of(gate.one_to_client()) == "limit.concurrency"
        gate.agent(answer(first["id"]))
    admitted = [one for one in audit_lines(tmp_path / "audit") if "admitted" in one["event"]]
    assert [one["agent"] for one in admitted] == ["web"]
