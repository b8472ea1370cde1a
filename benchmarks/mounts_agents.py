"""Agent runtimes: what a mount adds to a whole agent step.

A step is one run of an agent whose model is scripted: it asks for the tool, reads the answer and
ends. Four contenders do the same: the runtime bare; with the mount's kind of hook, doing nothing,
which is the runtime's own price of being hooked; with the mount, which has three rates, two
concurrency scopes, a deadline and the audit on; and the same with the audit off. A model that
thinks, or only talks to a network, would make all shares smaller.

A step takes milliseconds, in which a shared machine gives the processor to others, and is nothing
but computing: so it is the process's CPU time that counts, of all its threads. Of each slice the
median step stands for all, since a collection of garbage that strikes one step in ten is nobody's;
it is compared with the bare one of the same round. In the time of a step the runtime also takes
the caches, so that a guarded call costs several times what it does in a loop of its own. The
order of the contenders is drawn anew in each round: whoever follows a mount finds its code warm.

The hooks of Claude Code run in another process than the model's loop, so that there is no step to
compare with here: the time of both hooks of a call is given as it is.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks import report
from benchmarks.harness import Absent, Progress, Result, Verdict, machine
from benchmarks.inprocess import PLENTY, policy_text
from benchmarks.tool import lines_a_call
from callgate import Policy, Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Steps = Callable[[int], Awaitable[None]]
    """Makes that many steps."""
    Hook = Router | Literal["idle"] | None
    Make = Callable[[Hook], Steps]

MAX_SHARE = 0.05
MAX_ADDED_US = 50.0
SLICE_STEPS = 5
"""In a row: after one or two nothing of the contender before is in the caches."""
WARM_UP_STEPS = 40
QUICK_ROUNDS = 40
FULL_ROUNDS = 300


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{name.partition('.')[0]} is not installed") from error


async def search(query: str) -> str:
    """Answer at once."""
    return query


def search_sync(query: str) -> str:
    """Answer at once, without a loop."""
    return query


def _langchain(hook: Hook, *, sync: bool = False) -> Steps:
    base: Any = _load("langchain.agents.middleware").AgentMiddleware
    tools = _load("langchain_core.tools")

    class Idle(base):  # type: ignore[misc]  # not there for all
        # Plain functions, as the mount's are, and for its reason.
        def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    gate = partial(_load("callgate.mounts.langchain").CallgateMiddleware, agent="web")
    way = {"func": search_sync} if sync else {"coroutine": search}
    tool = tools.StructuredTool.from_function(**way, name="search", description="Search.")
    agent = _load("langchain.agents").create_agent(
        _langchain_model(), [tool], middleware=_hooks(hook, Idle, gate)
    )
    start = {"messages": [{"role": "user", "content": "go"}]}

    async def steps(count: int) -> None:
        for _ in range(count):
            state = await agent.ainvoke(start)
            assert state["messages"][2].content == "x"

    def invoke(count: int) -> None:
        for _ in range(count):
            state = agent.invoke(start)
            assert state["messages"][2].content == "x"

    async def sync_steps(count: int) -> None:
        await asyncio.to_thread(invoke, count)

    return sync_steps if sync else steps


def _langchain_model() -> Any:
    base: Any = _load("langchain_core.language_models.fake_chat_models").GenericFakeChatModel
    messages, outputs = _load("langchain_core.messages"), _load("langchain_core.outputs")
    call = {"name": "search", "args": {"query": "x"}, "id": "1"}

    class Scripted(base):  # type: ignore[misc]  # not there for all
        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        # Without this one LangChain would spend a thread on each answer of the model.
        async def _agenerate(self, *given: Any, **more: Any) -> Any:
            return self._generate(*given, **more)

        def _generate(self, history: Any, *_: Any, **__: Any) -> Any:
            asked = history[-1].type == "tool"
            said = messages.AIMessage("done" if asked else "", tool_calls=[] if asked else [call])
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=said)])

    return Scripted(messages=iter(()))


def _pydantic_ai(hook: Hook, *, toolset: bool = False) -> Steps:
    pydantic_ai, messages = _load("pydantic_ai"), _load("pydantic_ai.messages")
    function, toolsets = _load("pydantic_ai.models.function"), _load("pydantic_ai.toolsets")
    mount = _load("callgate.mounts.pydantic_ai")
    base: Any = _load("pydantic_ai.capabilities").AbstractCapability

    async def scripted(history: Any, _: Any) -> Any:
        (part,) = history[-1].parts
        if isinstance(part, messages.ToolReturnPart):
            return messages.ModelResponse(parts=[messages.TextPart(part.content)])
        call = messages.ToolCallPart("search", {"query": "x"})
        return messages.ModelResponse(parts=[call])

    class Idle(base):  # type: ignore[misc]  # not there for all
        async def wrap_tool_execute(self, _: Any, *, args: Any, handler: Any, **__: Any) -> Any:
            return await handler(args)

    model = function.FunctionModel(scripted)
    if toolset:
        tools = toolsets.FunctionToolset([search])
        idle = partial(toolsets.WrapperToolset, tools)
        wrapped = _hooks(hook, idle, partial(mount.CallgateToolset, tools, agent="web"))
        agent = pydantic_ai.Agent(model, toolsets=wrapped or [tools])
    else:
        gate = partial(mount.CallgateCapability, agent="web")
        capabilities = _hooks(hook, Idle, gate)
        agent = pydantic_ai.Agent(model, tools=[search], capabilities=capabilities)

    async def steps(count: int) -> None:
        for _ in range(count):
            assert (await agent.run("go")).output == "x"

    return steps


def _openai_agents(hook: Hook) -> Steps:
    agents, testing = _load("agents"), _load("agents.testing")
    call = testing.function_call("search", {"query": "x"}, call_id="1")
    end = testing.assistant_message("x")
    tool = agents.function_tool(search)
    invoke = tool.on_invoke_tool

    async def idle(*given: Any) -> Any:
        return await invoke(*given)

    if hook == "idle":
        tool.on_invoke_tool = idle
    agent = agents.Agent(name="web", tools=[tool])
    if isinstance(hook, Router):
        agent = _load("callgate.mounts.openai_agents").guard_agent(hook, agent)
    config = agents.RunConfig(tracing_disabled=True)

    async def steps(count: int) -> None:
        for _ in range(count):
            agent.model = testing.ScriptedModel([[call], [end]])
            result = await agents.Runner.run(agent, "go", run_config=config)
            assert result.new_items[1].output == "x"

    return steps


def _google_adk(hook: Hook) -> Steps:
    agents, models = _load("google.adk.agents"), _load("google.adk.models")
    base: Any = models.BaseLlm
    runners, types = _load("google.adk.runners"), _load("google.genai.types")
    logging.getLogger("google_adk").setLevel(logging.ERROR)  # it misses the model's bill

    class Scripted(base):  # type: ignore[misc]  # not there for all
        model: str = "scripted"

        async def generate_content_async(self, request: Any, **_: Any) -> AsyncIterator[Any]:
            answer = request.contents[-1].parts[0].function_response
            call = types.FunctionCall(name="search", args={"query": "x"})
            part = (
                types.Part(function_call=call)
                if answer is None
                else types.Part(text=answer.response["result"])
            )
            yield models.LlmResponse(content=types.Content(role="model", parts=[part]))

    plugin: Any = _load("google.adk.plugins.base_plugin").BasePlugin

    class Idle(plugin):  # type: ignore[misc]  # not there for all
        def __init__(self) -> None:
            super().__init__("idle")

        async def before_tool_callback(self, **_: Any) -> None:
            pass

        async def before_model_callback(self, **_: Any) -> None:
            pass

    gates = _hooks(hook, Idle, _load("callgate.mounts.google_adk").CallgatePlugin)
    agent = agents.LlmAgent(name="web", model=Scripted(), tools=[search])
    runner = runners.InMemoryRunner(agent, plugins=gates)
    message = types.Content(role="user", parts=[types.Part(text="go")])

    async def steps(count: int) -> None:
        for _ in range(count):
            session = await runner.session_service.create_session(
                app_name=runner.app_name, user_id="alice"
            )
            said = [
                event.content.parts[0].text
                async for event in runner.run_async(
                    user_id="alice", session_id=session.id, new_message=message
                )
            ]
            assert said[-1] == "x"

    return steps


def _claude_hooks(hook: Hook) -> Steps:
    """Both hooks of a call; bare, what it costs to ask two hooks that do nothing."""
    data = {"session_id": "s", "tool_use_id": "1", "tool_name": "search", "tool_input": {}}

    async def nothing(*_: Any) -> Any:
        return {}

    before: Any = nothing
    after: Any = nothing
    _load("claude_agent_sdk")
    if isinstance(hook, Router):
        hooks = _load("callgate.mounts.claude_agent").callgate_hooks(hook, agent="web")
        before, after = hooks["PreToolUse"][0].hooks[0], hooks["PostToolUse"][0].hooks[0]

    async def steps(count: int) -> None:
        for _ in range(count):
            assert await before(data, "1", {}) == {}
            assert await after(data, "1", {}) == {}

    return steps


def _hooks(hook: Hook, idle: Callable[[], Any], mount: Callable[[Router], Any]) -> list[Any]:
    if hook is None:
        return []
    return [idle() if hook == "idle" else mount(hook)]


RUNTIMES: dict[str, Make] = {
    "LangChain, ainvoke": _langchain,
    "LangChain, invoke": partial(_langchain, sync=True),
    "Pydantic AI, toolset": partial(_pydantic_ai, toolset=True),
    "Pydantic AI, capability": _pydantic_ai,
    "OpenAI Agents": _openai_agents,
    "Google ADK": _google_adk,
    "Claude Agent SDK, both hooks": _claude_hooks,
}


async def _compare(title: str, make: Make, rounds: int) -> list[float]:
    """Median µs of a bare step, and what the idle hook and both mounts add to it."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        audit = Path(folder)
        async with (
            Router(Policy.parse(policy_text(PLENTY, audit))) as router,
            Router(Policy.parse(policy_text(PLENTY, None))) as silent,
        ):
            contenders = [make(None), make("idle"), make(router), make(silent)]
            for steps in contenders:
                await steps(WARM_UP_STEPS)
            gc.collect()
            gc.freeze()
            try:
                bare, *others = await _interleaved(title, contenders, rounds)
            finally:
                gc.unfreeze()
        _check(audit, WARM_UP_STEPS + rounds * SLICE_STEPS)
    base_us = statistics.median(bare)
    ratios = (
        statistics.median(mine / theirs for mine, theirs in zip(each, bare, strict=True))
        for each in others
    )
    return [base_us, *(base_us * (ratio - 1) for ratio in ratios)]


async def _interleaved(title: str, contenders: list[Steps], rounds: int) -> list[list[float]]:
    """CPU µs of the median step of each contender, round by round."""
    times: list[list[float]] = [[] for _ in contenders]
    order = list(range(len(contenders)))
    draw = random.Random(0)  # noqa: S311  # the same in every run
    progress = Progress(f"{title}: {rounds} rounds", rounds)
    for number in range(rounds):
        draw.shuffle(order)
        for which in order:
            times[which].append(await _slice(contenders[which]))
        progress.at(number + 1)
    return times


def _check(audit: Path, steps: int) -> None:
    lines_a_call(audit.rglob("*.jsonl"), steps, 2)


async def _slice(steps: Steps) -> float:
    took = []
    for _ in range(SLICE_STEPS):
        started = time.process_time_ns()
        await steps(1)
        took.append((time.process_time_ns() - started) / 1000)
    return statistics.median(took)


async def measure(rounds: int) -> Result:
    """Each runtime in a comparison of its own, one after another."""
    result = Result(
        "mounts_agents", "Agent runtimes: what a mount adds to a step", machine(), rounds=rounds
    )
    for title, make in RUNTIMES.items():
        try:
            base_us, idle_us, added_us, silent_us = await _compare(title, make, rounds)
        except Absent as absence:
            result.absent[title] = str(absence)
            continue
        share = added_us / base_us
        result.facts[f"{title}: a bare step, CPU"] = f"{base_us:.0f} µs"
        result.facts[f"{title}: an idle hook, and the mount without audit"] = (
            f"{idle_us:+.0f} µs, {idle_us / base_us:+.1%}; {silent_us:+.0f} µs,"
            f" {silent_us / base_us:+.1%}"
        )
        result.verdicts.append(
            Verdict(
                title=f"{title}: what the mount adds to a step",
                measured=f"{added_us:+.0f} µs, {share:+.1%}",
                required=f"≤ {MAX_SHARE:.0%} or ≤ {MAX_ADDED_US:.0f} µs",
                passed=share <= MAX_SHARE or added_us <= MAX_ADDED_US,
            )
        )
    return result


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("what a mount adds to a step of an agent")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(argv)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    return report.emit(asyncio.run(measure(rounds)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
