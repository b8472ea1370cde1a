"""What every client in Python does with a server. Needs nothing but the client's package."""

from __future__ import annotations

import json
import sys
from typing import Any

_MODE_AT = 2
MODE, CALLS, _SLOW, *COMMAND = sys.argv[_MODE_AT:]


def plain(said: Any) -> Any:
    """Return a result as JSON's types."""
    if hasattr(said, "model_dump"):
        return said.model_dump(mode="json")
    if isinstance(said, list | tuple):
        return [plain(each) for each in said]
    return said


class Log:
    """What was asked, and what came of it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def ask(self, step: str, work: Any) -> None:
        try:
            self.seen.append([step, plain(await work)])
        except Exception as error:
            self.seen.append([step, type(error).__name__, str(error)])

    async def play(self, client: Any) -> None:
        """Ask for what all of them can ask for."""
        await self.ask("tools", client.list_tools())
        await self.ask("prompts", client.list_prompts())
        await self.ask("resources", client.list_resources())
        for name, given in json.loads(CALLS):
            await self.ask(name, client.call_tool(name, given))

    def tell(self) -> None:
        sys.stdout.write(json.dumps(self.seen))
