"""What can be wrong with a frame, in a closed set of words. Pure.

A `ProtocolError` never holds the peer's text: the reason is one of ours, and the id is kept
only if it is one that may be answered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from callgate.errors import ProtocolInvalid

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600

Id = int | str | bytes
"""What a request is called. Bytes are the JSON of what no two readers need agree on (a float, a
number that JavaScript rounds, a boolean, null): kept to be given back, and equal only to itself."""


class Reason(StrEnum):
    """Why a frame was refused; contract: audit and metrics count by it."""

    JSON = "json"
    """Not JSON: truncated, NaN, a comment, a control character, a lone surrogate."""
    UTF8 = "utf8"
    DEPTH = "depth"
    BATCH = "batch"
    """A batch of messages where none was agreed: one version of MCP has them."""
    NOT_OBJECT = "not_object"
    VERSION = "version"
    DUPLICATE_KEY = "duplicate_key"
    LOOKALIKE_KEY = "lookalike_key"
    """A key that a careless reader takes for one that we route by."""
    TOO_MANY_KEYS = "too_many_keys"
    ID = "id"
    SHAPE = "shape"
    """Neither a request nor a response, or both."""
    METHOD = "method"
    PARAMS = "params"
    TOOL_NAME = "tool_name"
    META = "meta"
    PROGRESS_TOKEN = "progress_token"  # noqa: S105  # a name
    TIMEOUT = "timeout"
    ARGUMENTS = "arguments"
    RESULT = "result"
    """A result whose members we must read cannot be read."""
    TYPE = "type"
    """Runtime protocol: a type that this side does not take."""
    PAYLOAD = "payload"


_PARSE_REASONS: Final = frozenset({Reason.JSON, Reason.UTF8, Reason.DEPTH})


class ProtocolError(ProtocolInvalid):
    """A frame that is refused; the stream goes on.

    `id` is the sender's id of it, if one could be found. `is_response` says whose: True for
    an answer to one of our requests, False for a request that may be answered with this
    error, None if the frame does not say.
    """

    def __init__(
        self, reason: Reason, *, rpc_id: Id | None = None, is_response: bool | None = None
    ) -> None:
        super().__init__()
        self.reason = reason
        self.id = rpc_id
        self.is_response = is_response
        self.jsonrpc = (  # type: ignore[misc]  # the one error whose number depends on its cause
            PARSE_ERROR if reason in _PARSE_REASONS else INVALID_REQUEST
        )

    def describe(self) -> str:
        return f"{super().describe()}: {self.reason}"


class IdInUse(ProtocolInvalid):
    """A request whose id one that is still in flight has: its answer could be taken for either."""

    def describe(self) -> str:
        return "the request's id is in use: another request with it is still in flight"
