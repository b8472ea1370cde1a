from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from callgate.telemetry.carrier import clean, trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_the_trace_id_of_a_valid_parent() -> None:
    assert trace_id({"traceparent": PARENT}) == TRACE


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        7,
        "",
        TRACE,
        PARENT.upper(),
        PARENT + "\n",
        " " + PARENT,
        PARENT + "-extra",
        PARENT.replace("00-", "ff-", 1),
        PARENT.replace(TRACE, "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT.replace("0af7", "\u0660af7"),
    ],
)
def test_anything_else_is_no_trace_id(traceparent: object) -> None:
    assert trace_id({"traceparent": traceparent}) is None
    assert clean({"traceparent": traceparent, "tracestate": "a=b"}) == {}


def test_no_carrier_is_no_trace_id() -> None:
    assert trace_id(None) is None
    assert clean(None) == {}


def test_well_formed_fields_pass_and_others_are_left_out() -> None:
    carrier = {
        "traceparent": PARENT,
        "tracestate": "rojo=00f067aa0ba902b7 , t61@congo=t61rcWkgMzE",
        "baggage": "user=al%20ice; p = 1 , k=v",
        "authorization": "Bearer x",
    }

    assert clean(carrier) == {
        "traceparent": PARENT,
        "tracestate": "rojo=00f067aa0ba902b7,t61@congo=t61rcWkgMzE",
        "baggage": "user=al%20ice; p = 1,k=v",
    }


@pytest.mark.parametrize("tracestate", ["A=b", "a=", "a=b,a=c", "a=b=c", "é=b", "a=" + "x" * 257])
def test_a_malformed_tracestate_is_left_out_and_the_parent_stays(tracestate: str) -> None:
    assert clean({"traceparent": PARENT, "tracestate": tracestate}) == {"traceparent": PARENT}


@pytest.mark.parametrize(
    "baggage", ["k", "=v", "k v=1", 'k="v"', "k=é", "k=v;", "k=" + "x" * 4096, "k=v," * 65]
)
def test_malformed_baggage_is_left_out(baggage: str) -> None:
    assert clean({"baggage": baggage}) == {}


def test_too_many_members_are_left_out() -> None:
    states = ",".join(f"k{index}=v" for index in range(33))

    assert clean({"traceparent": PARENT, "tracestate": states}) == {"traceparent": PARENT}


FIELD = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=60),
    st.text(alphabet='ak=;, \t"%2@-é\x00', max_size=60),
    st.from_regex(r"([a-z]{1,3}[ \t]?=[ \t]?[!-~ ]{0,9}(;[a-z]=?[a-z]?)?,?){0,4}", fullmatch=True),
    st.integers(2000, 4096).map(lambda size: "k=" + "!" * size),
)


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record)


@given(FIELD, FIELD)
def test_nothing_that_passes_makes_the_propagators_speak(tracestate: Any, baggage: Any) -> None:
    handler = Listener()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(handler)
    try:
        kept = clean({"traceparent": PARENT, "tracestate": tracestate, "baggage": baggage})
        context = TraceContextTextMapPropagator().extract(kept, Context())
        context = W3CBaggagePropagator().extract(kept, context)
        out: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(out, context)
        W3CBaggagePropagator().inject(out, context)
    finally:
        logger.removeHandler(handler)

    assert handler.said == []
    assert out["traceparent"] == PARENT
    assert ("tracestate" in kept) == ("tracestate" in out)


@pytest.mark.parametrize(
    "hostile",
    [
        "k=" + " " * 8000 + "v",
        "k=v" + ";" * 8000,
        "k=v;" + "a=" * 4000,
        "k" * 8000,
        ", " * 4000,
        "k=v" + " ;a" * 2600 + "\x00",
        "a=" + " " * 8000,
    ],
)
def test_hostile_fields_cost_little(hostile: str) -> None:
    start = time.perf_counter()

    kept = clean({"traceparent": PARENT, "tracestate": hostile, "baggage": hostile})
    W3CBaggagePropagator().extract(kept, Context())

    # Linear work is under a millisecond; the quadratic kind was over a hundred.
    assert time.perf_counter() - start < 0.05
