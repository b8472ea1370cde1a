"""A server with a bit of everything, on the SDK's 1.x; run by the tests as a program."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = 1024 * 1024
PAGE = 3


class Tools:
    """Each method is a tool."""

    def __init__(self, server: Any, types: Any) -> None:
        self._server = server
        self._types = types

    @property
    def session(self) -> Any:
        return self._server.request_context.session

    async def echo(self, arguments: dict[str, Any]) -> str:
        return str(arguments["text"])

    async def elicit(self, _arguments: dict[str, Any]) -> str:
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        said = await self.session.elicit("who are you?", form)
        return f"{said.action}: {said.content}"

    async def fail(self, _arguments: dict[str, Any]) -> str:
        raise ValueError("this tool fails")

    async def hang(self, _arguments: dict[str, Any]) -> str:
        await import_module("anyio").sleep_forever()
        return "never"

    async def large(self, _arguments: dict[str, Any]) -> str:
        return "x" * (2 * MIB)

    async def log(self, _arguments: dict[str, Any]) -> str:
        await self.session.send_log_message("info", "a line")
        return "logged"

    async def progress(self, _arguments: dict[str, Any]) -> str:
        token = self._server.request_context.meta.progressToken
        for step in range(3):
            await self.session.send_progress_notification(token, step, 3, f"step {step}")
        return "done"

    async def roots(self, _arguments: dict[str, Any]) -> str:
        return str([str(root.uri) for root in (await self.session.list_roots()).roots])

    async def sample(self, _arguments: dict[str, Any]) -> str:
        text = self._types.TextContent(type="text", text="a word, please")
        asked = self._types.SamplingMessage(role="user", content=text)
        said = await self.session.create_message([asked], max_tokens=5)
        return f"{said.model}: {said.content.text}"


NAMES = ("echo", "elicit", "fail", "hang", "large", "log", "progress", "roots", "sample")


def serve_tools(server: Any, types: Any) -> None:
    """At the low level, because only there lists have pages."""
    tools = Tools(server, types)

    async def list_tools(request: Any) -> Any:
        start = int(request.params.cursor or 0) if request and request.params else 0
        page = [
            types.Tool(name=name, inputSchema={"type": "object"})
            for name in NAMES[start : start + PAGE]
        ]
        more = str(start + PAGE) if start + PAGE < len(NAMES) else None
        return types.ServerResult(types.ListToolsResult(tools=page, nextCursor=more))

    async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
        work: Callable[[dict[str, Any]], Awaitable[str]] = getattr(tools, name)
        return [types.TextContent(type="text", text=await work(arguments))]

    # The decorator would ask for the request's type, which is not known here.
    server.request_handlers[types.ListToolsRequest] = list_tools
    server.call_tool(validate_input=False)(call_tool)


def serve_the_rest(server: Any, types: Any) -> None:
    """Resources, prompts, completion and logging."""

    async def list_resources() -> Any:
        return [types.Resource(uri=f"memo://{n}", name=str(n)) for n in range(3)]

    async def list_templates() -> Any:
        return [types.ResourceTemplate(uriTemplate="memo://{n}", name="memo")]

    async def read_resource(uri: Any) -> Any:
        return f"the text of {uri}"

    async def subscribe(uri: Any) -> None:
        await server.request_context.session.send_resource_updated(uri)

    async def list_prompts() -> Any:
        return [types.Prompt(name="greet", arguments=[types.PromptArgument(name="who")])]

    async def get_prompt(_name: str, arguments: dict[str, str] | None) -> Any:
        content = types.TextContent(type="text", text=f"greet {(arguments or {}).get('who')}")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def complete(_reference: Any, argument: Any, _context: Any) -> Any:
        return types.Completion(values=[argument.value + "a", argument.value + "b"])

    async def set_level(level: str) -> None:
        await server.request_context.session.send_log_message("info", f"level {level}")

    server.list_resources()(list_resources)
    server.list_resource_templates()(list_templates)
    server.read_resource()(read_resource)
    server.subscribe_resource()(subscribe)
    server.list_prompts()(list_prompts)
    server.get_prompt()(get_prompt)
    server.completion()(complete)
    server.set_logging_level()(set_level)


async def main() -> None:
    """Serve on stdin and stdout."""
    types: Any = import_module("mcp.types")
    server: Any = import_module("mcp.server.lowlevel").Server("everything of ours")
    serve_tools(server, types)
    serve_the_rest(server, types)
    stdio: Any = import_module("mcp.server.stdio").stdio_server
    async with stdio() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    import_module("anyio").run(main)
