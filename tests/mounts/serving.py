"""Serves an ASGI application over a real socket; needs uvicorn, which the MCP SDKs bring."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.mounts.conftest import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application on a free port of this machine."""
    uvicorn: Any = import_module("uvicorn")
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done())
    (port,) = [found.getsockname()[1] for listener in server.servers for found in listener.sockets]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        async with asyncio.timeout(PATIENCE_S):
            await task
