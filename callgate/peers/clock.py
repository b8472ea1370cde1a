"""The wall clock as other programs read it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
