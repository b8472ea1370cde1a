"""What a gate knows of an MCP agent's tools: it lists them itself.

Synchronous. So each tool has counters of its own and may be named in the audit. It asks once the
session is open or, in the era without one, once an answer has shown that the agent speaks it: a
client may only be trying which era it is. One listing is under way at a time, however often the
agent says that its tools have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.protocol import results
from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.problem import ProtocolError

if TYPE_CHECKING:
    from msgspec import Raw

    from callgate.peers.mcp_agent import McpAgent
    from callgate.protocol.jsonrpc import Response
    from callgate.protocol.members import Members

LIST_TIMEOUT_NS: Final = 30_000_000_000
"""For one page; an agent that does not answer has unnamed tools, no more."""
MAX_PAGES: Final = 64
"""Of a list; 4,096 tools come in 41 pages of the usual hundred."""


class ToolLister:
    """Lists the tools of one agent."""

    __slots__ = ("_agent", "_changed", "_listing", "_pages", "listed", "meta")

    def __init__(self, agent: McpAgent) -> None:
        self._agent = agent
        self.meta: Members | None = None
        """What every request must carry, in the era without `initialize`."""
        self._listing = False
        self._changed = False
        self._pages = 0
        self.listed = False
        """Whether this process was asked already."""

    def begin(self) -> None:
        """Ask for the list, or for it once more when the one under way is complete."""
        self.listed = True
        if self._listing:
            self._changed = True
            return
        self._listing = True
        self._pages = 0
        self._ask(None)

    def reset(self) -> None:
        """The process is gone."""
        self.listed = self._listing = self._changed = False

    def _ask(self, cursor: str | None) -> None:
        params: dict[str, object] = {} if cursor is None else {"cursor": cursor}
        if self.meta is not None:
            params["_meta"] = self.meta
        self._agent.ask("tools/list", encode_json(params), self._page, LIST_TIMEOUT_NS)

    def _page(self, response: Response | None) -> None:
        cursor = None
        if response is not None and len(response.result):
            cursor = self._learn(response.result)
        self._pages += 1
        if cursor is not None and self._pages < MAX_PAGES:
            self._ask(cursor)
            return
        self._listing = False
        if self._changed:
            self._changed = False
            self.begin()

    def _learn(self, result: Raw) -> str | None:
        """Take note of a page; where the next one begins."""
        agent = self._agent
        try:
            tools = results.read_tools(result)
        except ProtocolError as error:
            agent.hub.count_rejected_frame(agent.name, error.reason)
            return None
        agent.hub.router.list_tools(agent.name, tools.names)
        return tools.next_cursor
