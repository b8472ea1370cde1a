from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from callgate import (
    CallCanceled,
    CallgateError,
    CallTimedOut,
    InputTooLarge,
    OutputTooLarge,
    RateLimited,
)
from callgate.errors import InternalError
from callgate.mounts.guarded import guarded
from callgate.router.local import CURRENT
from tests.canary import canaries, leaks
from tests.mounts.conftest import POLICY, is_idle, until
from tests.mounts.examples import output_of

if TYPE_CHECKING:
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]


async def test_a_function_keeps_its_name_and_its_answer(desk: Desk) -> None:
    async with desk.router() as router:

        @guarded(router, agent="web")
        async def search(query: str, limit: int = 3) -> list[str]:
            """Look it up."""
            return [query] * limit

        answer = await search("x", limit=2)

    assert answer == ["x", "x"]
    assert (search.__name__, search.__doc__) == ("search", "Look it up.")
    assert desk.events() == [("admitted", "search"), ("completed", "search")]


async def test_a_refusal_is_raised(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        limited = guarded(router, agent="web", name="limited")(tools.limited)
        await limited()
        with pytest.raises(RateLimited):
            await limited()

    assert tools.calls == ["limited"]


async def test_a_timeout_may_be_asked_for(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        with pytest.raises(CallTimedOut):
            await guarded(router, agent="web", timeout_ms=30)(tools.single)()

    assert tools.cancelled.is_set()


async def test_an_exception_of_the_function_passes_as_it_is(desk: Desk) -> None:
    failure = ValueError(SECRET.secret)

    async def fail(text: str) -> None:
        assert text
        raise failure

    async with desk.router() as router:
        with pytest.raises(ValueError) as raised:  # noqa: PT011  # it is compared below
            await guarded(router, agent="web")(fail)(SECRET.secret)

    assert raised.value is failure
    assert desk.records()[-1]["code"] == "tool.failed"
    assert leaks([SECRET], desk.everything()) == {}


async def test_arguments_are_measured_however_they_are_given(desk: Desk) -> None:
    class Shop:
        async def small(self, text: str = "", *more: str, **options: str) -> int:
            return len(text) + len(more) + len(options)

    big = "x" * 100
    async with desk.router() as router:
        small = guarded(router, agent="web")(Shop.small)
        assert await small(Shop(), "x", "y", z="z") == 3
        for args, kwargs in (((big,), {}), (("", big), {}), ((), {"text": big}), ((), {"z": big})):
            with pytest.raises(InputTooLarge):
                await small(Shop(), *args, **kwargs)


async def test_a_function_of_the_arguments_says_who_calls(desk: Desk) -> None:
    async def greet(user: str) -> str:
        return user

    async with desk.router() as router:
        await guarded(router, agent="web", caller=lambda given: given["user"])(greet)("alice")

    assert desk.records()[-1]["caller"] == "alice"


async def test_a_caller_that_cannot_be_told_is_refused(desk: Desk, tools: Tools) -> None:
    def who(_: object) -> str:
        raise ValueError(SECRET.secret)

    async with desk.router() as router:
        with pytest.raises(InternalError) as raised:
            await guarded(router, agent="web", caller=who)(tools.limited)()

    assert raised.value.__context__ is None
    assert tools.calls == []


async def test_an_isolated_function_is_answered_at_its_deadline(desk: Desk) -> None:
    over = asyncio.Event()

    async def stubborn() -> None:
        try:
            await over.wait()
        except asyncio.CancelledError:
            await over.wait()

    policy = POLICY.replace("slow: {timeout: 50ms}", "stubborn: {timeout: 50ms, isolate: task}")
    async with desk.router(text=policy) as router:
        with pytest.raises(CallTimedOut):
            await guarded(router, agent="web")(stubborn)()
        over.set()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_generator_is_no_function_to_guard(desk: Desk, kind: str) -> None:
    async def stream() -> Any:
        yield 1

    def steps() -> Any:
        yield 1

    async with desk.router() as router:
        with pytest.raises(TypeError):
            guarded(router, agent="web")(stream if kind == "async" else steps)


async def test_a_block_is_a_call(desk: Desk) -> None:
    async with desk.router() as router:
        task = asyncio.current_task()
        async with guarded(router, agent="web", name="single"):
            assert asyncio.current_task() is task
            flight = CURRENT.get()
            assert flight is not None
            assert len(router.engine.flights) == 1
        assert CURRENT.get() is None
        assert len(router.engine.flights) == 0

    assert desk.events() == [("admitted", "single"), ("completed", "single")]


QUEUED = POLICY.replace("  web:\n", "  web:\n    queue: 4\n")


async def test_a_block_that_is_cancelled_while_it_waits_is_charged_nothing(desk: Desk) -> None:
    order: list[str] = []
    free = asyncio.Event()
    async with desk.router(text=QUEUED) as router:

        async def work(name: str) -> None:
            async with guarded(router, agent="web", name="single"):
                order.append(name)
                await free.wait()

        first = asyncio.create_task(work("first"))
        second = asyncio.create_task(work("second"))
        await until(lambda: len(router.engine.flights) == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert len(router.engine.flights) == 1
        free.set()
        await first
        assert is_idle(router)

    assert order == ["first"]


async def test_a_block_that_takes_too_long_is_cancelled(desk: Desk) -> None:
    cancelled = asyncio.Event()
    async with desk.router() as router:

        async def work() -> None:
            async with guarded(router, agent="web", name="slow"):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

        with pytest.raises(CallTimedOut) as raised:
            await work()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    assert cancelled.is_set()
    assert raised.value.limit is not None
    assert desk.events()[-1] == ("timed_out", "slow")


async def test_a_block_that_is_cancelled_by_its_id_raises_that(desk: Desk) -> None:
    async with desk.router() as router:

        async def work() -> None:
            async with guarded(router, agent="web", name="single"):
                (request_id,) = router.engine.flights
                asyncio.get_running_loop().call_soon(router.cancel, request_id)
                await asyncio.Event().wait()

        with pytest.raises(CallCanceled):
            await work()


@pytest.mark.parametrize("failure", [ValueError("x"), StopIteration(), StopAsyncIteration()])
async def test_an_exception_of_a_block_passes_as_it_is(desk: Desk, failure: Exception) -> None:
    async with desk.router() as router:
        with pytest.raises(type(failure)) as raised:
            async with guarded(router, agent="web", name="single"):
                raise failure

    assert raised.value is failure
    assert desk.records()[-1]["code"] == "tool.failed"


async def test_a_call_inside_a_block_is_nested(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        echo = guarded(router, agent="web")(tools.echo)
        async with guarded(router, agent="web", name="single", caller="alice"):
            await echo("x")

    callers = {record["caller"] for record in desk.records()}
    assert callers == {"alice"}


async def test_a_block_may_be_entered_again_when_it_is_over(desk: Desk) -> None:
    async with desk.router() as router:
        block = guarded(router, agent="web", name="single")
        async with block:
            with pytest.raises(RuntimeError):
                await block.__aenter__()
        async with block:
            pass

    assert len(desk.events()) == 4


async def test_a_block_needs_a_name(desk: Desk) -> None:
    async with desk.router() as router:
        with pytest.raises(TypeError):
            await guarded(router, agent="web").__aenter__()


async def test_a_block_cannot_be_isolated(desk: Desk) -> None:
    async with desk.router() as router:
        with pytest.raises(TypeError):
            async with guarded(router, agent="web", name="isolated_sync"):
                pytest.fail("let through")
        assert is_idle(router)


async def test_every_refusal_is_one_kind_of_error(desk: Desk, tools: Tools) -> None:
    router = desk.router()

    with pytest.raises(CallgateError):
        await guarded(router, agent="web")(tools.limited)()


def test_the_example_says_what_it_shows() -> None:
    passed, limited, late = output_of("mount_guarded")

    assert passed == "a page about owls"
    assert limited.startswith("limit.rate: ")
    assert late == "limit.timeout: db/query did not answer in time: 50 ms"


class Page(BaseModel):
    title: str


@pytest.mark.parametrize("times", [1, 2_000])
async def test_a_model_is_measured_as_its_json(desk: Desk, times: int) -> None:
    async def sized() -> Page:
        return Page(title="owl" * times)

    policy = POLICY.replace("small: {max_input_bytes: 64}", "sized: {max_output_bytes: 4096}")
    async with desk.router(text=policy) as router:
        call = guarded(router, agent="web")(sized)
        if times == 1:
            assert (await call()).title == "owl"
        else:
            with pytest.raises(OutputTooLarge):
                await call()


async def test_a_result_that_has_no_size_is_withheld_and_the_call_has_an_end(desk: Desk) -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    async def sized() -> Odd:
        return Odd()

    policy = POLICY.replace("small: {max_input_bytes: 64}", "sized: {max_output_bytes: 4096}")
    async with desk.router(text=policy) as router:
        with pytest.raises(OutputTooLarge, match="cannot be measured"):
            await guarded(router, agent="web")(sized)()
        assert is_idle(router)

    assert desk.records()[-1]["code"] == "limit.output_bytes"


async def test_on_another_loop_nothing_runs_and_nothing_waits(desk: Desk, tools: Tools) -> None:
    """A timeout would not fire there, and a queued call would wait for ever."""
    policy = POLICY.replace("web:\n", "web:\n    queue: 4\n")
    async with desk.router(text=policy) as router:
        single = guarded(router, agent="web", name="single")

        async def block() -> None:
            async with guarded(router, agent="web", name="single"):
                tools.calls.append("block")

        running = asyncio.create_task(single(tools.single)())
        await until(tools.started.is_set)
        for elsewhere in (single(tools.single), single(tools.slow_sync), block):
            with pytest.raises(InternalError, match=r"another event loop; make a router for each"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        tools.free.set()
        await running

    assert tools.calls == ["single"]
    assert desk.events() == [("admitted", "single"), ("completed", "single")]
