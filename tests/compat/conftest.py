from __future__ import annotations

from tests.mounts.conftest import desk, tools

__all__ = ["desk", "tools"]
