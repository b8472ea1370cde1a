"""What a client told an agent that a new process of it must be told again. Pure.

Only the era with `initialize` has such a session. It is replayed word for word: what the client
said is kept raw, `initialize` as large as its frame was, the rest in small pieces only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from callgate.protocol.jsonrpc import encode_json
from callgate.protocol.members import read_text

if TYPE_CHECKING:
    from callgate.protocol.mcp import Request
    from callgate.protocol.members import Members

VERSION_WITH_BATCHES: Final = "2025-03-26"
MAX_SUBSCRIPTIONS: Final = 1_024
"""Beyond it the oldest is not renewed after a restart."""
MAX_KEPT_BYTES: Final = 16_384
"""Of one request; a longer one is not sent again. Addresses are some hundred characters, and
together they stay below what one frame may have."""


class McpSession:
    """The state of one client's session with one agent."""

    __slots__ = ("_level", "_subscriptions", "initialize", "is_open", "tells_changes", "version")

    def __init__(self) -> None:
        self.initialize: bytes | None = None
        """The client's parameters."""
        self.version: str | None = None
        """What the agent answered; None until it has."""
        self.is_open = False
        """Whether the client said that it is initialized."""
        self.tells_changes = False
        """Whether the agent said that it tells of changes of its tools."""
        self._level: bytes | None = None
        self._subscriptions: OrderedDict[str, bytes] = OrderedDict()

    @property
    def has_batches(self) -> bool:
        """Whether client and agent have agreed on the one version that has batches."""
        return self.version == VERSION_WITH_BATCHES

    def note(self, request: Request) -> None:
        """Remember a request that changes the session."""
        params = request.params
        if params is None:
            return
        match request.method:
            case "initialize":
                self.initialize = encode_json(params)
                self.version = None
                self.is_open = False
            case "logging/setLevel":
                self._level = _kept(params)
            case "resources/subscribe":
                uri, kept = _uri(params), _kept(params)
                if uri is not None and kept is not None:
                    self._subscriptions[uri] = kept
                    if len(self._subscriptions) > MAX_SUBSCRIPTIONS:
                        self._subscriptions.popitem(last=False)
            case "resources/unsubscribe":
                self._subscriptions.pop(_uri(params) or "", None)

    def requests_to_replay(self) -> list[tuple[str, bytes]]:
        """After `initialize`: methods and parameters, in the order in which to send them."""
        level = [] if self._level is None else [("logging/setLevel", self._level)]
        return level + [("resources/subscribe", one) for one in self._subscriptions.values()]


def _kept(params: Members) -> bytes | None:
    """Without `_meta`: a progress token was good for one request; None if it is too long."""
    kept = encode_json({key: raw for key, raw in params.items() if key != "_meta"})
    return kept if len(kept) <= MAX_KEPT_BYTES else None


def _uri(params: Members) -> str | None:
    raw = params.get("uri")
    return None if raw is None else read_text(raw)
