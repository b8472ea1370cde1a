"""A server on the SDK's 2.x with what a client may be asked, pages and streams; a program."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MIB = 1024 * 1024
PAGE = 3
NAMES = ("echo", "large", "sample", "roots", "log", "ask", "touch", "level")


class Handlers:
    """What it answers; of either era."""

    def __init__(self) -> None:
        self.types: Any = import_module("mcp.types")
        self.subscriptions: Any = import_module("mcp.server.subscriptions")
        self.bus: Any = self.subscriptions.InMemorySubscriptionBus()
        self.level = "none"

    def _page(self, params: Any, names: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        start = int((params and params.cursor) or 0)
        more = str(start + PAGE) if start + PAGE < len(names) else None
        return names[start : start + PAGE], more

    async def list_tools(self, _context: Any, params: Any) -> Any:
        names, more = self._page(params, NAMES)
        tools = [self.types.Tool(name=name, input_schema={"type": "object"}) for name in names]
        return self.types.ListToolsResult(tools=tools, next_cursor=more)

    async def list_resources(self, _context: Any, params: Any) -> Any:
        names, more = self._page(params, tuple("abcdefgh"))
        found = [self.types.Resource(uri=f"memo://{name}", name=name) for name in names]
        return self.types.ListResourcesResult(resources=found, next_cursor=more)

    async def read_resource(self, _context: Any, params: Any) -> Any:
        content = self.types.TextResourceContents(uri=params.uri, text=f"the text of {params.uri}")
        return self.types.ReadResourceResult(contents=[content])

    async def complete(self, _context: Any, params: Any) -> Any:
        values = [params.argument.value + end for end in "ab"]
        return self.types.CompleteResult(completion=self.types.Completion(values=values))

    async def list_prompts(self, _context: Any, _params: Any) -> Any:
        return self.types.ListPromptsResult(prompts=[self.types.Prompt(name="greet")])

    async def set_level(self, _context: Any, params: Any) -> Any:
        self.level = params.level
        return self.types.EmptyResult()

    async def call_tool(self, context: Any, params: Any) -> Any:
        answer = await getattr(self, f"_{params.name}")(context, params)
        if not isinstance(answer, str):
            return answer
        content = self.types.TextContent(type="text", text=answer)
        return self.types.CallToolResult(content=[content])

    async def _echo(self, _context: Any, params: Any) -> str:
        return str(params.arguments["text"])

    async def _large(self, _context: Any, _params: Any) -> str:
        return "x" * 3 * MIB

    def _question(self) -> list[Any]:
        content = self.types.TextContent(type="text", text="a word?")
        return [self.types.SamplingMessage(role="user", content=content)]

    async def _sample(self, context: Any, _params: Any) -> str:
        answer = await context.session.create_message(self._question(), max_tokens=5)
        return str(answer.content.text)

    async def _roots(self, context: Any, _params: Any) -> str:
        return str([str(root.uri) for root in (await context.session.list_roots()).roots])

    async def _log(self, context: Any, _params: Any) -> str:
        await context.session.send_log_message("info", "a line", related_request_id=None)
        return "logged"

    async def _level(self, _context: Any, _params: Any) -> str:
        return self.level

    async def _touch(self, context: Any, params: Any) -> str:
        """Tell whoever listens, in the way of its era."""
        uri = params.arguments["uri"]
        if context.protocol_version >= "2026":
            await self.bus.publish(self.subscriptions.ResourceUpdated(uri=uri))
        else:
            await context.session.send_resource_updated(uri)
        return "touched"

    async def _ask(self, _context: Any, params: Any) -> Any:
        """The newer era asks with an answer, and is called again with what it asked for."""
        types = self.types
        if params.input_responses is None:
            sampling = types.CreateMessageRequestParams(messages=self._question(), max_tokens=5)
            form = types.ElicitRequestFormParams(
                message="who?", requested_schema={"type": "object", "properties": {}}
            )
            asked = {
                "word": types.CreateMessageRequest(params=sampling),
                "name": types.ElicitRequest(params=form),
                "where": types.ListRootsRequest(),
            }
            return types.InputRequiredResult(input_requests=asked, request_state="kept: é")
        said = params.input_responses
        found = [said["word"].content.text, said["name"].action, str(said["where"].roots[0].uri)]
        return " ".join([*found, params.request_state])


async def main() -> None:
    """Serve on stdin and stdout."""
    has = Handlers()
    server: Any = import_module("mcp.server").Server(
        "rich",
        on_list_tools=has.list_tools,
        on_call_tool=has.call_tool,
        on_list_resources=has.list_resources,
        on_read_resource=has.read_resource,
        on_completion=has.complete,
        on_list_prompts=has.list_prompts,
        on_set_logging_level=has.set_level,
        on_subscriptions_listen=has.subscriptions.ListenHandler(has.bus),
    )
    stdio: Any = import_module("mcp.server.stdio").stdio_server
    async with stdio() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    import_module("anyio").run(main)
