"""No secret that passes through the router shows in anything it leaves behind.

Canaries are put into every place that a peer or a program can write to, through every way
that a call can go and end; then everything that comes out is searched, but for what a tool
says to its own caller. The same search then has to catch leaks that are planted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate import CallgateError, Policy, Router, ToolCall
from callgate.audit.names import caller_name
from callgate.errors import RateLimited
from callgate.router import flight, lanes, local
from callgate.router.engine import Engine
from callgate.telemetry.spans import Spans
from callgate.telemetry.stats import ToolStats
from callgate.telemetry.tracing import CallSpan
from tests.canary import Canary, canaries, find_markers, leaks
from tests.conftest import FULL
from tests.router.helpers import until
from tests.test_canary_detector import PLANTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CANARIES = canaries(64 if FULL else 12)
"""Twelve have every marker twice and most of what encoders find awkward."""

POLICY = """
version: 1
callers:
  "*": {quota: 1000/day, rate: unlimited, max_input_bytes: 9KB}
  robot: {token: env:ROBOT_TOKEN}
defaults: {rate: unlimited, concurrency: 50, timeout: 20s, max_timeout: 60s}
agents:
  web:
    max_input_bytes: 10KB
    max_output_bytes: 10KB
    queue: 5
    tools:
      apart: {isolate: task}
      no: deny
      once: {rate: 1/day}
      small: {max_input_bytes: 8, max_output_bytes: 8}
      quick: {timeout: 20ms}
      lazy: {timeout: 20ms, isolate: task}
      one: {concurrency: 1}
      shadowed: {rate: {limit: 1/day, mode: shadow}}
"""


class Named(Exception):
    """An exception with a secret in all that it has."""

    def __init__(self, secret: str) -> None:
        super().__init__(secret, {secret: secret})
        self.add_note(secret)
        self.filename = secret


class Copy:
    """A sink for audit records."""

    name = "copy"

    def __init__(self) -> None:
        self.data = b""

    def emit(self, lines: Sequence[bytes]) -> None:
        self.data += b"".join(lines)

    def close(self) -> None:
        pass


class Sinks:
    """Everything that comes out, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.copy = Copy()
        self.spans = InMemorySpanExporter()
        self.metrics = InMemoryMetricReader()
        self.tracer = TracerProvider(shutdown_on_exit=False)
        self.tracer.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meter = MeterProvider([self.metrics], shutdown_on_exit=False)
        self.texts: dict[str, list[str]] = {"errors": [], "snapshot": [], "metrics": []}

    def router(self) -> Router:
        made = Policy.parse(POLICY + f"audit: {{path: {self.root / 'audit'}}}\n")
        return Router(
            made,
            state_dir=self.root / "state",
            sinks=[self.copy],
            tracer_provider=self.tracer,
            meter_provider=self.meter,
        )

    def error(self, error: CallgateError) -> None:
        """An error of ours, in every way in which somebody might write it down."""
        self.texts["errors"] += [
            json.dumps(error.as_dict()),
            str(error),
            repr(error),
            repr(error.args),
            repr(vars(error)),
            "".join(traceback.format_exception(error)),
        ]

    def look(self, router: Router) -> None:
        """What is only there while the router runs."""
        data = self.metrics.get_metrics_data()
        self.texts["metrics"].append("" if data is None else data.to_json())
        self.texts["snapshot"].append(json.dumps(router.snapshot()))

    def collect(self, caplog: pytest.LogCaptureFixture, capfd: Any) -> dict[str, bytes]:
        found = {name: "\n".join(texts).encode() for name, texts in self.texts.items()}
        found["spans"] = "\n".join(s.to_json() for s in self.spans.get_finished_spans()).encode()
        found["copy"] = self.copy.data
        found["logs"] = "\n".join(_log_text(record) for record in caplog.records).encode()
        for folder in ("audit", "state"):
            files = [file for file in sorted(self.root.rglob("*")) if file.is_file()]
            mine = [file for file in files if file.is_relative_to(self.root / folder)]
            found[folder] = b"\n".join(
                str(file).encode() + b"\n" + file.read_bytes() for file in mine
            )
        out, err = capfd.readouterr()
        found["stdout"], found["stderr"] = out.encode(), err.encode()
        return found


def _log_text(record: logging.LogRecord) -> str:
    return f"{logging.Formatter().format(record)} {record.args!r}"


@pytest.fixture
def sinks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Sinks:
    caplog.set_level(logging.DEBUG)
    return Sinks(tmp_path)


# Tools that mishandle what they get.


async def give_back(**arguments: Any) -> Any:
    await asyncio.sleep(0)
    return arguments


async def explode(secret: str) -> None:
    await asyncio.sleep(0)
    raise Named(secret) from KeyError(secret)


def explode_in_a_thread(secret: str) -> None:
    raise Named(secret)


async def sleep_long(secret: str) -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise Named(secret) from None
    return secret


async def cancel_with_words(secret: str) -> None:
    raise asyncio.CancelledError(secret)


def register(router: Router) -> None:
    functions: dict[str, Any] = {
        "back": give_back,
        "apart": give_back,
        "no": give_back,
        "once": give_back,
        "small": give_back,
        "shadowed": give_back,
        "explode": explode,
        "thread": explode_in_a_thread,
        "quick": sleep_long,
        "lazy": sleep_long,
        "words": cancel_with_words,
        "one": sleep_long,
    }
    for name, function in functions.items():
        router.add_tool("web", name, function)
    router.add_tool("web", "apart_explode", explode)

    async def nest(secret: str) -> Any:
        return await router.call(ToolCall("web", "explode", {"secret": secret}, secret))

    router.add_tool("web", "nest", nest)


def calls_with(secret: str) -> list[ToolCall]:
    """The secret in each place, and through each way that a call can go."""
    trace = {
        "traceparent": secret,
        "tracestate": f"k={secret}",
        "baggage": f"{secret}={secret}",
        secret: secret,
    }
    good_trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "baggage": f"k={secret}"}
    argument = {"secret": secret}
    return [
        ToolCall("web", "back", {"value": secret}),
        ToolCall("web", "back", {secret: 1}),
        ToolCall("web", "back", {"deep": [{"er": [secret]}]}),
        ToolCall("web", "back", {}, secret),
        ToolCall("web", "back", {}, None, None, secret, secret),
        ToolCall("web", "back", {}, None, None, None, None, trace),
        ToolCall("web", "back", {}, None, None, None, None, good_trace),
        ToolCall("web", secret, argument, secret),
        ToolCall(secret, "back", argument, secret),
        ToolCall(secret, secret, argument),
        ToolCall("web", "no", {"value": secret}, secret),
        ToolCall("web", "no", {secret: secret}, secret),
        ToolCall("web", "explode", {"unfit": secret}),
        ToolCall("web", "once", {"value": secret}, secret),
        ToolCall("web", "once", {"value": secret}, secret),
        ToolCall("web", "small", {"value": secret}, secret),
        ToolCall("web", "small", {}, secret),
        ToolCall("web", "shadowed", {"value": secret}, secret),
        ToolCall("web", "shadowed", {"value": secret}, secret),
        ToolCall("web", "apart", {"value": secret}, secret),
        ToolCall("web", "explode", argument, secret),
        ToolCall("web", "thread", argument, secret),
        ToolCall("web", "words", argument, secret),
        ToolCall("web", "nest", argument, secret),
        ToolCall("web", "back", {"value": secret * 400}, secret),
    ]


async def attempt(sinks: Sinks, awaitable: Any) -> None:
    """Whatever comes of it: errors of ours are searched, a tool's own go to its caller."""
    try:
        await awaitable
    except CallgateError as error:
        sinks.error(error)
    except (Named, asyncio.CancelledError):
        pass


async def exercise(sinks: Sinks, planted: Sequence[Canary]) -> None:
    loop = asyncio.get_running_loop()
    # asyncio then logs every step, with the repr of tasks and callbacks.
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    router = sinks.router()
    register(router)
    async with router:
        for canary in planted:
            secret = canary.secret
            for made in calls_with(secret):
                await attempt(sinks, router.call(made))
                await attempt(sinks, router.guard(made, lambda: give_back(secret=secret)))  # noqa: B023
                await attempt(sinks, _wait(router.submit(made)))
            await _ended_from_outside(sinks, router, secret)
        await _by_deadline(sinks, router, planted)
        sinks.look(router)
    gc.collect()
    await asyncio.sleep(0)
    loop.set_debug(False)


async def _wait(job: Any) -> Any:
    return await job


async def _ended_from_outside(sinks: Sinks, router: Router, secret: str) -> None:
    """Cancelled while it runs and while it waits, by its id, by its task and by nobody."""
    made = ToolCall("web", "one", {"secret": secret}, secret)
    for words in ((), (secret,)):
        # A program's own task shows what it ended with; that is the program's affair.
        holder = asyncio.create_task(attempt(sinks, router.call(made)))
        waiting = asyncio.create_task(attempt(sinks, router.call(made)))
        unheard = router.submit(ToolCall("web", "explode", {"secret": secret}, secret))
        await asyncio.sleep(0)
        router.cancel(secret)
        waiting.cancel(*words)
        if words:
            holder.cancel(*words)
        else:
            for request_id in list(router.engine.flights):
                router.cancel(request_id)
        await asyncio.wait((holder, waiting), timeout=20)
        await until(unheard.done)
        del unheard


async def _by_deadline(sinks: Sinks, router: Router, planted: Sequence[Canary]) -> None:
    """All at once, for they take their time."""
    late = [
        router.call(ToolCall("web", tool, {"secret": canary.secret}, canary.secret))
        for canary in planted
        for tool in ("quick", "lazy")
    ]
    await asyncio.gather(*(attempt(sinks, one) for one in late))


async def test_no_secret_shows_in_anything_that_the_router_leaves_behind(
    sinks: Sinks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number, canary in enumerate(CANARIES):
        monkeypatch.setenv(f"SECRET_{number}", canary.secret)
    monkeypatch.setenv("ROBOT_TOKEN", CANARIES[0].secret)

    await exercise(sinks, CANARIES)

    found = sinks.collect(caplog, capfd)
    quiet = {name for name, data in found.items() if not data}
    assert quiet <= {"stdout", "stderr"}, "a sink that nothing reaches proves nothing"
    assert len(found["audit"].splitlines()) > 20 * len(CANARIES)
    assert {name: leaked for name, data in found.items() if (leaked := leaks(CANARIES, data))} == {}
    assert {name: marks for name, data in found.items() if (marks := find_markers(data))} == {}


# Planted leaks: mistakes that somebody might make, in the code that is tested above.


def leak_caller(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lanes, "caller_name", lambda name, *_: name)


def leak_tool(patch: pytest.MonkeyPatch) -> None:
    real = Policy.tool_key
    patch.setattr(lanes, "safe_tool", lambda name: name)
    patch.setattr(Policy, "tool_key", lambda self, a, t: t if a == "web" else real(self, a, t))


def leak_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flight, "_uuid", lambda given: json.dumps(str(given))[1:-1])


def leak_message(patch: pytest.MonkeyPatch) -> None:
    real = Engine.refuse

    def refuse(self: Engine, lane: Any, error: CallgateError, *rest: Any) -> CallgateError:
        error.__cause__ = ValueError(lane.caller.name)
        return real(self, lane, error, *rest)

    patch.setattr(Engine, "refuse", refuse)


def leak_in_a_structure(patch: pytest.MonkeyPatch) -> None:
    real = Engine.refuse

    def refuse(self: Engine, lane: Any, error: CallgateError, *rest: Any) -> CallgateError:
        if isinstance(error, RateLimited):
            error.tool = lane.caller.name
        return real(self, lane, error, *rest)

    patch.setattr(Engine, "refuse", refuse)


def leak_to_a_log(patch: pytest.MonkeyPatch) -> None:
    real = local.LocalRunner._raised

    def raised(self: Any, flight: Any, task: Any, error: BaseException, reading: Any) -> Any:
        logging.getLogger("callgate.router").debug("a tool failed", exc_info=error)
        return real(self, flight, task, error, reading)

    patch.setattr(local.LocalRunner, "_raised", raised)


def leak_by_asyncio(patch: pytest.MonkeyPatch) -> None:
    real = local.LocalRunner._raised

    def raised(self: Any, flight: Any, task: Any, error: BaseException, reading: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(ValueError(str(error)))  # and nobody asks for it
        return real(self, flight, task, error, reading)

    patch.setattr(local.LocalRunner, "_raised", raised)


def leak_to_stderr(patch: pytest.MonkeyPatch) -> None:
    real = local.LocalRunner._raised

    def raised(self: Any, flight: Any, task: Any, error: BaseException, reading: Any) -> Any:
        os.write(2, repr(error).encode())
        return real(self, flight, task, error, reading)

    patch.setattr(local.LocalRunner, "_raised", raised)


def leak_to_a_spans_event(patch: pytest.MonkeyPatch) -> None:
    real = CallSpan.__exit__

    def leave(self: CallSpan, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self.otel.record_exception(error)
        real(self, kind, error, trace)

    patch.setattr(CallSpan, "__exit__", leave)


def leak_to_a_spans_attribute(patch: pytest.MonkeyPatch) -> None:
    real = Spans.start

    def start(self: Spans, agent: Any, tool: Any, request_id: str, carrier: Any = None) -> Any:
        span = real(self, agent, tool, request_id, carrier)
        if span is not None and carrier:
            span.otel.set_attribute("carrier", json.dumps(dict(carrier)))
        return span

    patch.setattr(Spans, "start", start)


def leak_to_a_metric(patch: pytest.MonkeyPatch) -> None:
    def stats(agent: str | None, tool: str | None) -> ToolStats:
        return ToolStats(agent, tool or os.environ["SECRET_0"])

    patch.setattr(lanes, "ToolStats", stats)


def leak_to_the_store(patch: pytest.MonkeyPatch) -> None:
    real = caller_name

    def shown(name: str, named: Any, key: bytes) -> str:
        return real(name, named, key) if name in named else "~" + name.encode().hex()

    patch.setattr(lanes, "caller_name", shown)


MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a caller by its name": (leak_caller, "audit"),
    "a caller by its name, in the copies": (leak_caller, "copy"),
    "a caller by its name, in errors": (leak_caller, "errors"),
    "a caller in hex, in the store of quotas": (leak_to_the_store, "state"),
    "a tool by its name": (leak_tool, "audit"),
    "a tool by its name, in spans": (leak_tool, "spans"),
    "a tool by its name, in metrics": (leak_tool, "metrics"),
    "a tool by its name, in the snapshot": (leak_tool, "snapshot"),
    "a correlation id as it came": (leak_id, "audit"),
    "an error's cause": (leak_message, "errors"),
    "an error's field": (leak_in_a_structure, "errors"),
    "an exception in a log": (leak_to_a_log, "logs"),
    "an exception that nobody asked for": (leak_by_asyncio, "logs"),
    "an exception on stderr": (leak_to_stderr, "stderr"),
    "an exception in a span": (leak_to_a_spans_event, "spans"),
    "baggage in a span": (leak_to_a_spans_attribute, "spans"),
    "an environment variable in a metric": (leak_to_a_metric, "metrics"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_the_router_would_be_caught(
    sinks: Sinks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    mistake: str,
) -> None:
    make, where = MISTAKES[mistake]
    planted = CANARIES[:1]
    monkeypatch.setenv("SECRET_0", planted[0].secret)
    make(monkeypatch)

    with suppress(Exception):  # a mistake may also break what it leaks from
        await exercise(sinks, planted)

    assert leaks(planted, sinks.collect(caplog, capfd)[where])


@pytest.mark.parametrize("how", PLANTED)
def test_a_secret_in_a_log_is_caught_in_every_form(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path, how: str
) -> None:
    canary = CANARIES[3]
    leak = PLANTED[how](canary.secret)
    text = leak if isinstance(leak, str) else leak.decode("latin-1")

    logging.getLogger("callgate").warning("%s", text)

    logs = Sinks(tmp_path).collect(caplog, capfd)["logs"].decode()
    assert canary.find(logs.encode("latin-1", "replace")) or canary.find(logs)
