"""How many bytes a result has for whoever reads it: a model, or a client on its behalf.

Pure. Text counts as UTF-8, anything else as the JSON that is made of it, with bytes as base64.
A mount says what of a runtime's result is read; nothing is counted unless a limit asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from callgate.router.screen import measure


def text_bytes(text: str) -> int:
    """Return the size of a text in UTF-8; text that is mostly ASCII is not even encoded."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_bytes(value: Any) -> int:
    """Return the size of a value as compact JSON; raise if it has no such form.

    Models and what else pydantic can write count as pydantic writes them.
    """
    size = measure(value)
    if size is None:
        size = len(to_json(value, by_alias=True, exclude_none=True, bytes_mode="base64"))
    return size


def value_bytes(value: Any) -> int:
    """Return the size of a text as it is, and of anything else as JSON."""
    return text_bytes(value) if isinstance(value, str) else json_bytes(value)


def messages_bytes(values: Any) -> int:
    """Return the size of the contents of messages, one or nested in lists; of all else, 0."""
    if isinstance(values, list | tuple):
        return sum(map(messages_bytes, values))
    if isinstance(values, Mapping):
        return value_bytes(values["content"]) if "content" in values else 0
    content = getattr(values, "content", None)
    return 0 if content is None else value_bytes(content)
