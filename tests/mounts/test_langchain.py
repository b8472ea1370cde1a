from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import anyio.from_thread
import pytest

from tests.canary import canaries, leaks
from tests.mounts.conftest import PATIENCE_S, POLICY, until
from tests.mounts.examples import output_of

pytest.importorskip("langchain", reason="langchain is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, ParentCommand
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from langsmith import Client
from langsmith.run_helpers import tracing_context

from callgate.mounts import threads
from callgate.mounts.langchain import CallgateMiddleware
from tests.mounts.runtimes.langchain import (
    START_MESSAGE,
    agent_of,
    answers,
    langchain_tools,
    scripted,
    tool_messages,
)

if TYPE_CHECKING:
    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]


def code_of(message: ToolMessage) -> str:
    assert message.status == "error"
    return str(message.artifact["callgate/error"]["code"])


async def test_a_refusal_is_an_error_message_that_a_model_can_read(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("limited", {})], [("limited", {})])
        _, refused = await answers(agent)

    assert code_of(refused) == "limit.rate"
    assert isinstance(refused.content, str)
    assert refused.content.startswith("rate limit of tool web/limited reached: 1/hour; try again")
    assert (refused.name, refused.tool_call_id) == ("limited", "call-2")
    assert tools.calls == ["limited"]


async def test_arguments_that_do_not_fit_are_the_runtimes_to_report(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"wrong": "x"})])
        (answer,) = await answers(agent)

    assert "Field required" in str(answer.content)
    assert desk.events()[-1] == ("failed", "echo")


async def test_a_tool_that_is_not_there_is_the_runtimes_to_report(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [(SECRET.secret, {})])
        (answer,) = await answers(agent)

    assert "is not a valid tool" in str(answer.content)
    assert leaks([SECRET], desk.everything()) == {}


ASKED = ["admitted", "suspended", "admitted", "completed"]


def asking_tool() -> BaseTool:
    def ask() -> str:
        """Ask a human."""
        return f"a human says {interrupt('may I?')}"

    return StructuredTool.from_function(func=ask)


async def test_an_interrupt_reaches_the_graph_and_is_resumed(desk: Desk) -> None:
    async with desk.router() as router:
        agent, _ = agent_of([asking_tool()], router, [("ask", {})], checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "1"}}
        paused = await agent.ainvoke(START_MESSAGE, config)
        state = await agent.ainvoke(Command(resume="yes"), config)

    assert paused["__interrupt__"][0].value == "may I?"
    assert tool_messages(state)[0].content == "a human says yes"
    assert [event for event, _ in desk.events()] == ASKED


@pytest.mark.parametrize("times", [1, 1_000])
@pytest.mark.parametrize("kind", ["blocks", "command", "artifact"])
async def test_messages_are_measured_as_the_model_will_read_them(
    desk: Desk, kind: str, times: int
) -> None:
    text = "owls!" * times
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    made = {"blocks": ([image], None), "artifact": ("short", text)}

    def sized() -> Any:
        """Draw."""
        return made[kind]

    def noted() -> Command[Any]:
        """Draw, and note it down."""
        message = ToolMessage(text, tool_call_id="call-1", name="sized")
        return Command(update={"messages": [message], "jump_to": None})

    policy = POLICY.replace("small: {max_input_bytes: 64}", "sized: {max_output_bytes: 4096}")
    tool = StructuredTool.from_function(func=sized, response_format="content_and_artifact")
    if kind == "command":
        tool = StructuredTool.from_function(func=noted, name="sized")
    async with desk.router(text=policy) as router:
        agent, _ = agent_of([tool], router, [("sized", {})])
        (answer,) = await answers(agent)

    withheld = times > 1 and kind != "artifact"
    assert ("at most 4096 are allowed" in str(answer.content)) == withheld
    assert desk.events()[-1] == ("failed" if withheld else "completed", "sized")


async def test_two_gates_of_one_agent_have_two_names(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        gates = [
            CallgateMiddleware(router, agent="web"),
            CallgateMiddleware(router, agent="other"),
            CallgateMiddleware(router, agent="other", name="third"),
        ]
        agent = create_agent(
            scripted([("echo", {"text": "x"})]), langchain_tools(tools), middleware=gates
        )
        (answer,) = await answers(agent)

    assert answer.content == "x"
    admitted = [r["agent"] for r in desk.records() if r["event"] == "tool.call.admitted"]
    assert sorted(admitted) == ["other", "other", "web"]


async def test_a_command_of_a_tool_passes(desk: Desk) -> None:
    def leave() -> Command[Any]:
        """End the run."""
        message = ToolMessage("left", tool_call_id="call-1")
        return Command(update={"messages": [message]}, goto=END)

    async with desk.router() as router:
        agent, _ = agent_of([StructuredTool.from_function(func=leave)], router, [("leave", {})])
        (answer,) = await answers(agent)

    assert answer.content == "left"
    assert desk.events()[-1] == ("completed", "leave")


async def test_a_nodes_own_control_exceptions_pass(desk: Desk) -> None:
    async def recurse() -> str:
        """Ask too much of the graph."""
        raise GraphRecursionError("too deep")

    async with desk.router() as router:
        tool = StructuredTool.from_function(coroutine=recurse)
        agent, _ = agent_of([tool], router, [("recurse", {})])
        with pytest.raises(GraphRecursionError):
            await answers(agent)


async def test_what_bubbles_up_to_a_parent_graph_is_no_failure(desk: Desk) -> None:
    async def hand_over() -> str:
        """Go on elsewhere."""
        raise ParentCommand(Command(graph=Command.PARENT, goto=END))

    async with desk.router() as router:
        tool = StructuredTool.from_function(coroutine=hand_over)
        agent, _ = agent_of([tool], router, [("hand_over", {})])
        with pytest.raises(ParentCommand):
            await answers(agent)

    assert desk.events() == [("admitted", "hand_over"), ("suspended", "hand_over")]


async def test_a_tool_node_of_a_graph_can_be_wrapped(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        gate = CallgateMiddleware(router, agent="web")
        node = ToolNode(
            langchain_tools(tools),
            wrap_tool_call=gate.wrap_tool_call,
            awrap_tool_call=gate.awrap_tool_call,
        )
        graph = StateGraph(MessagesState)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        model = scripted([("delete_all", {}), ("echo", {"text": "x"})])
        message = await model.ainvoke("go")
        state = await graph.compile().ainvoke({"messages": [message]})

    refused, answer = tool_messages(state)
    assert code_of(refused) == "policy.denied"
    assert answer.content == "x"


@pytest.mark.parametrize(
    "options",
    [
        {"context": {"user_id": "alice"}},
        {"config": {"configurable": {"user_id": "alice"}}},
        {"config": {"configurable": {"langgraph_auth_user_id": "alice", "user_id": "bob"}}},
    ],
)
async def test_the_user_of_the_run_is_the_caller(
    desk: Desk, tools: Tools, options: dict[str, Any]
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"text": "x"})], context_schema=dict)
        await answers(agent, **options)

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_the_caller_can_be_told_by_a_function_of_the_runtime(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(
            tools,
            router,
            [("echo", {"text": "x"})],
            caller=lambda runtime: runtime.context["who"],
            context_schema=dict,
        )
        await answers(agent, context={"who": "alice"})

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_with_tracing_on_the_gates_spans_say_nothing(desk: Desk, tools: Tools) -> None:
    client = MagicMock(spec=Client)
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"text": "x"})])
        with tracing_context(enabled=True, client=client):
            (answer,) = await answers(agent)

    created = {made.kwargs["id"]: made.kwargs for made in client.create_run.call_args_list}
    prefix = "CallgateMiddleware(web)."
    ours = [id_ for id_, run in created.items() if run["name"].startswith(prefix)]
    ended = [end.kwargs for end in client.update_run.call_args_list if end.kwargs["run_id"] in ours]
    assert answer.content == "x"
    assert len(ours) == len(ended) == 3
    assert [created[id_]["inputs"] for id_ in ours] == [{}] * 3
    assert [run["outputs"] for run in ended] == [None] * 3


async def test_a_policy_that_denies_nothing_needs_no_hook_on_the_model(desk: Desk) -> None:
    async with desk.router(text="version: 1\n") as router:
        gate = CallgateMiddleware(router, agent="web")

    assert gate.__class__.awrap_model_call is AgentMiddleware.awrap_model_call


async def test_the_signature_that_langsmith_asks_for_on_every_call_is_made_once(
    desk: Desk,
) -> None:
    async with desk.router() as router:
        gate: Any = CallgateMiddleware(router, agent="web")

    hooks = (gate.awrap_tool_call, gate.wrap_tool_call, gate.awrap_model_call, gate.wrap_model_call)
    assert all(inspect.signature(hook) is inspect.signature(hook) for hook in hooks)
    assert {tuple(inspect.signature(hook).parameters) for hook in hooks} == {("request", "handler")}


# Without a loop: `invoke` in one thread, the router in another.


def sync_answers(agent: Any) -> list[ToolMessage]:
    return tool_messages(agent.invoke(START_MESSAGE))


def sync_tools(tools: Tools) -> list[BaseTool]:
    def quick() -> str:
        """Answer at once."""
        tools.calls.append("quick")
        return "done"

    def delete_all() -> str:
        """Denied."""
        tools.calls.append("delete_all")
        return "deleted"

    functions = (quick, delete_all, tools.slow_sync)
    return [StructuredTool.from_function(func=function) for function in functions]


def test_invoke_works_where_the_router_runs_in_a_portal(desk: Desk, tools: Tools) -> None:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(desk.router()) as router,
    ):
        agent, model = agent_of(sync_tools(tools), router, [("quick", {}), ("delete_all", {})])
        answer, refused = sync_answers(agent)

    assert answer.content == "done"
    assert code_of(refused) == "policy.denied"
    assert model.offered == [{"quick", "slow_sync"}] * 2
    assert ("completed", "quick") in desk.events()


async def test_invoke_works_in_a_thread_of_an_async_program(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(sync_tools(tools), router, [("quick", {})])
        (answer,) = await asyncio.to_thread(sync_answers, agent)

    assert answer.content == "done"


async def test_invoke_is_answered_at_the_deadline_and_the_thread_holds_its_slot(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        agent, _ = agent_of(sync_tools(tools), router, [("slow_sync", {})], [("slow_sync", {})])
        late, held = await asyncio.to_thread(sync_answers, agent)
        tools.thread_free.set()
        await until(lambda: ("late", "slow_sync") in desk.events())

    assert code_of(late) == "limit.timeout"
    assert code_of(held) == "limit.concurrency"


async def test_a_call_of_invoke_can_be_cancelled(desk: Desk, tools: Tools) -> None:
    policy = "version: 1\naudit: {path: PATH}\n"
    async with desk.router(text=policy) as router:
        agent, _ = agent_of(sync_tools(tools), router, [("slow_sync", {})])
        run = asyncio.create_task(asyncio.to_thread(sync_answers, agent))
        await until(lambda: tools.calls == ["slow_sync"])
        (request_id,) = router.engine.flights
        router.cancel(request_id)
        (refused,) = await run
        tools.thread_free.set()

    assert code_of(refused) == "tool.canceled"


async def test_an_interrupt_reaches_a_graph_without_a_loop(desk: Desk) -> None:
    async with desk.router() as router:
        agent, _ = agent_of([asking_tool()], router, [("ask", {})], checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "1"}}
        paused = await asyncio.to_thread(agent.invoke, START_MESSAGE, config)
        state = await asyncio.to_thread(agent.invoke, Command(resume="yes"), config)

    assert paused["__interrupt__"][0].value == "may I?"
    assert tool_messages(state)[0].content == "a human says yes"
    assert [event for event, _ in desk.events()] == ASKED


async def test_a_tool_that_exits_ends_its_run_and_not_the_routers_loop(
    desk: Desk, tools: Tools
) -> None:
    def leave() -> str:
        """Exit."""
        raise SystemExit(3)

    async with desk.router() as router:
        made = [*sync_tools(tools), StructuredTool.from_function(func=leave)]
        agent, _ = agent_of(made, router, [("leave", {})])
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(sync_answers, agent)
            await until(ended.done)
        error = ended.exception()
        again, _ = agent_of(made, router, [("quick", {})])
        (answer,) = await asyncio.to_thread(sync_answers, again)

    assert isinstance(error, SystemExit)
    assert answer.content == "done"


async def test_invoke_on_the_routers_own_loop_is_refused_and_not_hung(
    desk: Desk,
    tools: Tools,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(threads, "START_S", 0.05)
    async with desk.router() as router:
        agent, _ = agent_of(sync_tools(tools), router, [("quick", {})])
        (refused,) = sync_answers(agent)

    assert code_of(refused) == "internal"
    assert "loop is blocked" in caplog.text
    assert tools.calls == []


def test_invoke_without_a_running_router_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    agent, _ = agent_of(sync_tools(tools), desk.router(), [("quick", {})])

    (refused,) = sync_answers(agent)

    assert code_of(refused) == "internal"
    assert "not running" in caplog.text
    assert tools.calls == []


async def test_a_run_on_another_loop_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "callgate.mounts")
    async with desk.router() as router:
        agent, _ = agent_of(tools, router, [("echo", {"text": "x"})])
        (refused,) = await asyncio.to_thread(asyncio.run, answers(agent))

    assert code_of(refused) == "internal"
    assert "another event loop" in caplog.text
    assert tools.calls == []


async def end(router: Router) -> None:
    """What `asyncio.run` does with a loop that somebody stopped; threads end with their tasks."""
    await router.__aexit__(None, None, None)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*left, return_exceptions=True)


def test_a_thread_that_waits_notices_that_the_loop_has_stopped(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "LOOK_S", 0.01)
    policy = "version: 1\ndefaults: {timeout: unlimited, max_timeout: unlimited}\n"
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    runner.start()
    router = desk.router(text=policy)
    asyncio.run_coroutine_threadsafe(router.__aenter__(), loop).result(PATIENCE_S)
    begun = threading.Event()

    def wait() -> str:
        """Block a thread."""
        begun.set()
        return tools.slow_sync()

    agent, _ = agent_of([StructuredTool.from_function(func=wait)], router, [("wait", {})])
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(sync_answers, agent)
        assert begun.wait(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        runner.join(PATIENCE_S)
        (refused,) = run.result(PATIENCE_S)
    tools.thread_free.set()
    loop.run_until_complete(end(router))
    loop.close()

    assert code_of(refused) == "internal"
    assert "has stopped" in caplog.text


def test_the_example_runs() -> None:
    assert output_of("mount_langchain") == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]
