"""The plugin under real runners. ADK needs an older OpenTelemetry: this runs in `make compat`."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tests.canary import canaries, leaks
from tests.docs.reader import play
from tests.mounts.examples import output_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ADK warns of itself
    pytest.importorskip("google.adk", reason="google-adk is not installed; make compat")
    plugins: Any = pytest.importorskip("google.adk.plugins.base_plugin")
    adk_tools: Any = pytest.importorskip("google.adk.tools")
    toolsets: Any = pytest.importorskip("google.adk.tools.base_toolset")

from callgate.mounts.google_adk import CallgatePlugin
from tests.mounts.runtimes.google_adk import Call, Scene, Scripted, agents, runners

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mounts.conftest import Desk, Tools

SECRET = canaries(1)[0]
REFUSED_INSIDE = "callgate failed inside and refused the call"

pytestmark = pytest.mark.filterwarnings("ignore")  # ADK's own; ours are seen by all other tests


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


async def test_an_agent_with_denied_tools_only_is_offered_none(desk: Desk, tools: Tools) -> None:
    async with desk.router() as router:
        scene = Scene([tools.delete_all], router)
        await scene.run()

    assert scene.model.offered == [set()]


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

    assert "the router runs on another event loop; make a router" in answers[0]["error"]
    assert "another event loop" in caplog.text
    assert tools.calls == []


def test_the_example_runs() -> None:
    assert output_of("mount_google_adk", strict=False) == [
        "a page about owls",
        "rate limit of tool web/search reached: 1/hour; try again in 3600.0 s",
        "done",
    ]


def test_its_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    play("docs/mounts/google-adk.md", tmp_path, strict=False)
