"""Claude Code under a gate: the second call of a tool is denied, and the model reads why.

python examples/mount_claude_agent.py
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, query, tool

from callgate import Policy, Router
from callgate.mounts.claude_agent import callgate_hooks

POLICY = "version: 1\nagents: {claude: {tools: {mcp__web__search: {rate: 1/hour}}}}"


@tool("search", "Find pages about something.", {"query": str})
async def search(arguments: dict[str, Any]) -> dict[str, Any]:
    """Answer at once."""
    return {"content": [{"type": "text", "text": f"a page about {arguments['query']}"}]}


async def main() -> None:
    """Run an agent that calls a tool more often than its policy allows."""
    call = ("mcp__web__search", {"query": "owls"})
    with ScriptedClaude([call], [call]) as model, tempfile.TemporaryDirectory() as home:
        async with Router(Policy.parse(POLICY)) as router:
            options = ClaudeAgentOptions(
                hooks=callgate_hooks(router, agent="claude"),
                mcp_servers={"web": create_sdk_mcp_server("web", tools=[search])},
                allowed_tools=["mcp__web__search"],
                env=model.environment(home),
                cwd=home,
                setting_sources=[],
            )
            async for message in query(prompt="go", options=options):
                result = getattr(message, "result", None)
        print(*model.answers, result, sep="\n")


class ScriptedClaude:
    """Stands for the model: Claude Code's own way of asking it, on this machine only.

    Each turn is a list of calls; after the last it says "done".
    """

    def __init__(self, *turns: list[tuple[str, dict[str, Any]]]) -> None:
        self._turns = iter(turns)
        self._turn = 0
        self._answers: dict[str, str] = {}
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def answers(self) -> list[str]:
        """What the model read of its calls, in their order."""
        return [text for _, text in sorted(self._answers.items())]

    def environment(self, home: str) -> dict[str, str]:
        """What makes Claude Code ask here and keep to `home`."""
        return {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self._server.server_port}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CONFIG_DIR": home,
            "HOME": home,
            "NO_PROXY": "127.0.0.1",
        }

    def reply(self, messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
        """The id of the next message and its blocks."""
        blocks = [block for message in messages for block in message["content"]]
        for block in blocks:
            if isinstance(block, dict) and block["type"] == "tool_result":
                content = block["content"]
                text = content if isinstance(content, str) else content[0]["text"]
                self._answers[block["tool_use_id"]] = text.rstrip("\n")
        self._turn += 1
        calls = [
            {"type": "tool_use", "id": f"{self._turn}-{number}", "name": name, "input": arguments}
            for number, (name, arguments) in enumerate(next(self._turns, []))
        ]
        return f"message-{self._turn}", calls or [{"type": "text", "text": "done"}]


class _Handler(BaseHTTPRequestHandler):
    model: ScriptedClaude

    def do_POST(self) -> None:
        """Answer `/v1/messages` as a stream of server-sent events."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id_, blocks = self.model.reply(request["messages"])
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": id_, "role": "assistant", "model": "scripted", "content": []}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message | {"type": "message", "usage": usage}}
        ]
        for index, block in enumerate(blocks):
            is_text = block["type"] == "text"
            empty: dict[str, Any] = {"text": ""} if is_text else {"input": {}}
            delta = (
                {"type": "text_delta", "text": block["text"]}
                if is_text
                else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            )
            events += [
                {"type": "content_block_start", "index": index, "content_block": block | empty},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        reason = "end_turn" if blocks[0]["type"] == "text" else "tool_use"
        events += [
            {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
            {"type": "message_stop"},
        ]
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        body = "".join(lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    asyncio.run(main())
