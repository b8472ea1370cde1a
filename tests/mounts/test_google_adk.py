"""The plugin under real runners. ADK needs an older OpenTelemetry: this runs in `make compat`."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries, leaks
from tests.docs.reader import play
from tests.mounts.conftest import CALLERS, PATIENCE_S, until
from tests.mounts.examples import output_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ADK warns of itself
    pytest.importorskip("google.adk", reason="google-adk is not installed; make compat")
    agents: Any = pytest.importorskip("google.adk.agents")
    run_configs: Any = pytest.importorskip("google.adk.agents.run_config")
    models: Any = pytest.importorskip("google.adk.models")
    plugins: Any = pytest.importorskip("google.adk.plugins.base_plugin")
    runners: Any = pytest.importorskip("google.adk.runners")
    adk_tools: Any = pytest.importorskip("google.adk.tools")
    toolsets: Any = pytest.importorskip("google.adk.tools.base_toolset")
    types: Any = pytest.importorskip("google.genai.types")

from callgate.mounts.google_adk import CallgatePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
REFUSED_INSIDE = "callgate failed inside and refused the call"

pytestmark = pytest.mark.filterwarnings("ignore")  # ADK's own; ours are seen by all other tests

Call = tuple[str, dict[str, Any]]


class Scripted(models.BaseLlm):  # type: ignore[misc]  # not there where types are checked
    """Says what it is told to, and remembers what it was offered and answered."""

    model: str = "scripted"
    turns: list[list[Call]]
    offered: list[set[str]] = []  # noqa: RUF012  # pydantic copies it
    answers: list[Any] = []  # noqa: RUF012

    async def generate_content_async(self, llm_request: Any, **_: Any) -> AsyncIterator[Any]:
        declared = [
            each for tool in llm_request.config.tools or [] for each in tool.function_declarations
        ]
        self.offered.append({each.name for each in declared})
        for part in llm_request.contents[-1].parts:
            if part.function_response is not None:
                self.answers.append(part.function_response.response)
        if self.turns:
            parts = [
                types.Part(function_call=types.FunctionCall(name=name, args=arguments))
                for name, arguments in self.turns.pop(0)
            ]
        else:
            parts = [types.Part(text="done")]
        yield models.LlmResponse(content=types.Content(role="model", parts=parts))


def functions_of(tools: Tools) -> list[Any]:
    made = [getattr(tools, name) for name in dir(tools) if not name.startswith("_")]
    return [function for function in made if callable(function)]


class Scene:
    """A runner with one agent whose model is scripted."""

    def __init__(
        self,
        tools: Tools | list[Any],
        router: Router,
        *turns: list[Call],
        more: list[Any] | None = None,
        **options: Any,
    ) -> None:
        self.model = Scripted(turns=list(turns))
        made = tools if isinstance(tools, list) else functions_of(tools)
        options.setdefault("agent", "web")
        self.plugin = CallgatePlugin(router, **options)
        agent = agents.LlmAgent(name="finder", model=self.model, tools=made)
        self.runner = runners.InMemoryRunner(agent, plugins=[self.plugin, *(more or [])])

    async def run(self, **config: Any) -> list[Any]:
        """What the model read of each call, in order."""
        async with asyncio.timeout(PATIENCE_S):
            session = await self.runner.session_service.create_session(
                app_name=self.runner.app_name, user_id="alice"
            )
            message = types.Content(role="user", parts=[types.Part(text="go")])
            async for _ in self.runner.run_async(
                user_id="alice",
                session_id=session.id,
                new_message=message,
                run_config=run_configs.RunConfig(**config),
            ):
                pass
        return list(self.model.answers)


async def test_an_admitted_call_is_answered_and_named_in_the_audit(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        answers = await Scene(tools, router, [("echo", {"text": "x"})]).run()

    assert answers == [{"result": "x"}]
    assert desk.events() == [("admitted", "echo"), ("completed", "echo")]
    assert {record["caller"] for record in desk.records()} == {"alice"}
    assert {record["agent"] for record in desk.records()} == {"web"}


async def test_a_refusal_is_an_error_that_a_model_can_read(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        _, refused = await Scene(tools, router, [("limited", {})], [("limited", {})]).run()

    assert refused["error"].startswith("rate limit of tool web/limited reached: 1/hour; try again")
    assert tools.calls == ["limited"]


async def test_a_call_too_many_at_once_is_refused(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        scene = Scene(tools, router, [("single", {}), ("single", {})])
        running = asyncio.create_task(scene.run())
        await until(lambda: ("denied", "single") in desk.events())
        tools.free.set()
        first, second = await running

    assert first == {"result": "done"}
    assert second["error"].startswith("concurrency limit of tool web/single reached: 1 at once")


async def test_a_call_that_takes_too_long_is_cancelled_and_refused(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        (refused,) = await Scene(tools, router, [("slow", {})]).run()

    assert refused == {"error": "web/slow did not answer in time: 50 ms"}
    assert tools.cancelled.is_set()
    assert desk.events()[-1] == ("timed_out", "slow")


async def test_cancelling_the_run_cancels_the_work(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        running = asyncio.create_task(Scene(tools, router, [("single", {})]).run())
        await until(tools.started.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: router.engine.flights == {})

    assert tools.cancelled.is_set()
    assert desk.events()[-1] == ("cancelled", "single")


async def test_a_denied_tool_is_refused_and_not_offered(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        scene = Scene(tools, router, [("delete_all", {})])
        (refused,) = await scene.run()

    assert refused == {"error": "the policy does not allow web/delete_all"}
    assert all("echo" in names and "delete_all" not in names for names in scene.model.offered)
    assert desk.events() == [("denied", "delete_all")]
    assert tools.calls == []


async def test_an_agent_with_denied_tools_only_is_offered_none(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        scene = Scene([tools.delete_all], router)
        await scene.run()

    assert scene.model.offered == [set()]


async def test_in_shadow_mode_everything_passes_and_is_noted(desk: Desk, tools: Tools) -> None:
    async with desk.router("shadow") as router:
        scene = Scene(tools, router, [("delete_all", {})])
        answers = await scene.run()

    assert answers == [{"result": "deleted"}]
    assert all("delete_all" in names for names in scene.model.offered)
    assert ("would_deny", "delete_all") in desk.events()


async def test_a_sync_tool_in_a_pool_holds_its_slot_until_its_thread_ends(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        scene = Scene(tools, router, [("slow_sync", {})], [("slow_sync", {})])
        late, held = await scene.run(tool_thread_pool_config=run_configs.ToolThreadPoolConfig())
        tools.thread_free.set()
        await until(lambda: ("late", "slow_sync") in desk.events())

    assert late == {"error": "web/slow_sync did not answer in time: 50 ms"}
    assert held["error"].startswith("concurrency limit of tool web/slow_sync reached")
    assert tools.calls == ["slow_sync"]


async def test_a_failure_of_the_tool_passes_unchanged(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        with pytest.raises(ValueError, match="its own words"):
            await Scene(tools, router, [("fail", {"text": "its own words"})]).run()

    assert desk.records()[-1]["code"] == "tool.failed"


async def test_an_error_that_a_tool_reports_is_a_failure_in_the_audit(desk: Desk) -> None:
    async def find() -> dict[str, str]:
        """Find nothing."""
        return {"error": "nothing there"}

    async with desk.router() as router:
        answers = await Scene([find], router, [("find", {})]).run()

    assert answers == [{"error": "nothing there"}]
    assert desk.events()[-1] == ("failed", "find")


async def test_a_tool_that_is_not_there_is_the_runtimes_to_report(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        (answer,) = await Scene(tools, router, [(SECRET.secret, {})]).run()

    assert "no tool with that name is available" in answer["error"]
    assert leaks([SECRET], desk.everything()) == {}


async def test_a_confirmation_is_still_asked_for_first(desk: Desk, tools: Tools) -> None:
    tool = adk_tools.FunctionTool(tools.echo, require_confirmation=True)
    async with desk.router() as router:
        answers = await Scene([tool], router, [("echo", {"text": "x"})]).run()

    assert answers == []
    assert desk.records() == []
    assert tools.calls == []


async def test_an_agents_own_callback_answers_first(desk: Desk, tools: Tools) -> None:
    class Cache(plugins.BasePlugin):  # type: ignore[misc]  # not there where types are checked
        async def before_tool_callback(self, **_: Any) -> dict[str, str]:
            return {"result": "from the cache"}

    async with desk.router() as router:
        scene = Scene(tools, router, [("echo", {"text": "x"})], more=[Cache("cache")])
        answers = await scene.run()

    assert answers == [{"result": "from the cache"}]
    assert desk.records() == []


async def test_the_same_tool_in_another_runner_is_not_guarded(desk: Desk, tools: Tools) -> None:
    tool = adk_tools.FunctionTool(tools.limited)
    async with desk.router() as router:
        await Scene([tool], router, [("limited", {})]).run()
        model = Scripted(turns=[[("limited", {})]])
        scene = Scene([tool], router)
        scene.model = model
        agent = agents.LlmAgent(name="other", model=model, tools=[tool])
        scene.runner = runners.InMemoryRunner(agent)
        answers = await scene.run()

    assert answers == [{"result": "done"}]
    assert desk.events() == [("admitted", "limited"), ("completed", "limited")]


async def test_two_plugins_both_count_each_call_once(desk: Desk, tools: Tools) -> None:
    turns: list[list[Call]] = [[("echo", {"text": "x"})]] * 3
    async with desk.router() as router:
        other = CallgatePlugin(router, agent="other", name="other")
        await Scene(tools, router, *turns, more=[other]).run()

    admitted = [r["agent"] for r in desk.records() if r["event"] == "tool.call.admitted"]
    assert sorted(admitted) == ["other"] * 3 + ["web"] * 3


async def test_a_prefixed_copy_of_a_guarded_tool_is_its_own(desk: Desk, tools: Tools) -> None:
    tool = adk_tools.FunctionTool(tools.echo)

    class Set(toolsets.BaseToolset):  # type: ignore[misc]  # not there where types are checked
        async def get_tools(self, readonly_context: Any = None) -> list[Any]:
            return [tool]

        async def close(self) -> None:
            pass

    async with desk.router() as router:
        await Scene([tool], router, [("echo", {"text": "x"})]).run()
        scene = Scene([Set(tool_name_prefix="my")], router, [("my_echo", {"text": "y"})])
        answers = await scene.run()

    assert answers == [{"result": "y"}]
    assert desk.events()[2:] == [("admitted", "my_echo"), ("completed", "my_echo")]


async def test_without_an_agent_the_name_of_adks_is_taken(desk: Desk, tools: Tools) -> None:
    policy = "version: 1\nagents: {finder: {tools: {echo: deny}}}\naudit: {path: PATH}\n"
    async with desk.router(text=policy) as router:
        (refused,) = await Scene(tools, router, [("echo", {"text": "x"})], agent=None).run()

    assert refused == {"error": "the policy does not allow finder/echo"}


@CALLERS
async def test_a_name_or_a_function_says_who_calls(desk: Desk, tools: Tools, caller: Any) -> None:
    async with desk.router() as router:
        await Scene(tools, router, [("echo", {"text": "x"})], caller=caller).run()

    assert {record["caller"] for record in desk.records()} == {"alice"}


async def test_the_caller_can_be_told_by_a_function_of_the_context(
    desk: Desk, tools: Tools
) -> None:
    async with desk.router() as router:
        scene = Scene(
            tools, router, [("echo", {"text": "x"})], caller=lambda context: context.agent_name
        )
        await scene.run()

    (caller,) = {record["caller"] for record in desk.records()}
    assert caller.startswith("~")


async def test_a_caller_that_cannot_be_told_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    def who(_: object) -> str:
        raise ValueError(SECRET.secret)

    async with desk.router() as router:
        scene = Scene(tools, router, [("echo", {"text": "x"})], caller=who)
        answers = await scene.run()

    assert answers == [{"error": REFUSED_INSIDE}]
    assert scene.model.offered[0] == set()
    assert tools.calls == []
    assert leaks([SECRET], caplog.text) == {}


def fails(*_: Any) -> Any:
    raise RuntimeError(SECRET.secret)


@pytest.mark.parametrize("part", ["_Guarded", "_is_guarded", "_in_thread"])
async def test_a_gate_that_fails_lets_nothing_through(
    desk: Desk, tools: Tools, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    async with desk.router() as router:
        scene = Scene(tools, router, [("echo", {"text": "x"})])
        monkeypatch.setattr(f"callgate.mounts.google_adk.{part}", fails)
        answers = await scene.run()

    assert answers == [{"error": REFUSED_INSIDE}]
    assert tools.calls == []


async def test_a_run_on_another_loop_is_refused(
    desk: Desk, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.router() as router:
        scene = Scene(tools, router, [("echo", {"text": "x"})])
        answers = await asyncio.to_thread(asyncio.run, scene.run())

    assert answers == [{"error": REFUSED_INSIDE}]
    assert "another loop" in caplog.text
    assert tools.calls == []


async def test_no_secret_reaches_the_audit_or_a_refusal(desk: Desk, tools: Tools) -> None:
    secret = SECRET.secret
    small = adk_tools.FunctionTool(tools.echo)
    small.name = "small"
    turns: list[list[Call]] = [
        [("echo", {"text": secret})],
        [("small", {"text": secret * 10})],
        [("delete_all", {"text": secret})],
    ]
    async with desk.router() as router:
        scene = Scene([*functions_of(tools), small], router, *turns, caller=lambda _: secret)
        _, *refused = await scene.run()

    assert refused[0]["error"].endswith("at most 64 are allowed")
    assert leaks([SECRET], desk.everything() + repr(refused).encode()) == {}


def test_the_example_runs() -> None:
    assert output_of("mount_google_adk", strict=False) == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]


def test_its_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    play("docs/mounts/google-adk.md", tmp_path, strict=False)
