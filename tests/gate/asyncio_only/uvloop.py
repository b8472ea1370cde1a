"""Stands before the real one where asyncio's own loop is meant."""

from __future__ import annotations

raise ImportError("hidden")
