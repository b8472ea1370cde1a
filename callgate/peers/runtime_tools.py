"""The tools that an agent of the runtime protocol has registered. Pure.

They are kept for the agent's life, so they are bounded in number and in bytes, and none keeps
alive the frame that it was read from.
"""

from __future__ import annotations

from typing import Final

from callgate.protocol import runtime
from callgate.protocol import runtime_table as table

MAX_TOOL_BYTES: Final = 16 * 1024 * 1024
"""Of all descriptions of one agent together: the largest known list has a tenth of it."""


class RegisteredTools(dict[str, table.Tool]):
    """Tools by name."""

    def __init__(self, agent: str) -> None:
        super().__init__()
        self._agent = agent
        self._bytes = 0

    def register(self, body: table.Register) -> table.Registered:
        """Take what can be taken; return the answer, which says why the rest cannot."""
        offered, rejected = runtime.check_tools(body, self._agent)
        if body.replace:
            self.clear()
        taken: list[str] = []
        for tool in offered:
            self._remove(tool.name)
            size = _size(tool)
            if len(self) < table.MAX_NAMES and self._bytes + size <= MAX_TOOL_BYTES:
                self[tool.name] = runtime.kept(tool)
                self._bytes += size
                taken.append(tool.tool_id)
            else:
                error = table.Error("tool.invalid", "the agent has too many tools, or too large")
                rejected.append(table.Rejected(tool.tool_id, error))
        return table.Registered(tuple(taken), tuple(rejected))

    def unregister(self, body: table.Unregister) -> table.Unregistered:
        """Remove tools; return the answer."""
        gone = []
        for tool_id in body.tool_ids:
            agent_id, _, name = tool_id.partition("/")
            if agent_id == self._agent and self._remove(name):
                gone.append(tool_id)
        return table.Unregistered(tuple(gone))

    def clear(self) -> None:
        """Remove all: another process will register its own."""
        super().clear()
        self._bytes = 0

    def _remove(self, name: str) -> bool:
        tool = self.pop(name, None)
        if tool is None:
            return False
        self._bytes -= _size(tool)
        return True


def _size(tool: table.Tool) -> int:
    """Return the bytes that are kept of a tool; a character may take four."""
    text = 2 * len(tool.name) + len(tool.tool_id) + len(tool.description)
    return 4 * text + len(tool.input_schema) + len(tool.output_schema)
