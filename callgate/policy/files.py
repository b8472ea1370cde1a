"""Reading what a policy is made of, never more than its limit. IO.

A manifest is a path that the policy names and perhaps an agent's author fills: it must be
a regular file, so that no device or pipe can be read for ever. The policy itself may come
through a pipe (`callgate check <(...)`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_at_most(path: Path, limit: int) -> bytes:
    """The file, or its first `limit` + 1 bytes, which tells that it is larger."""
    with path.open("rb") as file:
        return file.read(limit + 1)


def read_regular(path: Path, limit: int) -> bytes:
    """As `read_at_most`, for regular files only."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return read_at_most(path, limit)
