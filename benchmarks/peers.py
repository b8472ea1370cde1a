"""The peers: `tollgate` from PyPI and FastMCP's own middlewares, in memory.

Neither does the same work as the gate. Each contender states what it does; what is said
here comes from reading tollgate 1.4.0 and FastMCP 4.1.2.

Both are imported by name only when their contender is set up: they are not dependencies.
"""

from __future__ import annotations

import importlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.byhand import CALLS_PER_SECOND, file_logger
from benchmarks.harness import Absent, Ready
from benchmarks.tool import ANSWER, ARGUMENTS, lines_a_call, search

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import ModuleType

TOLLGATE_POLICY = """
version: "1"
rules:
  - {id: reads, tool: "web:search", effect: read, resource_type: page, decision: ALLOW}
"""
TOLLGATE_MANIFEST = """
version: "1"
tools:
  "web:search":
    effect: read
    resource_type: page
    params_schema:
      type: object
      required: [query]
      properties: {query: {type: string}}
"""
TOLLGATE_RATES = [
    {"max_calls": CALLS_PER_SECOND, "window_seconds": 1},
    {"agent_id": "alice", "max_calls": CALLS_PER_SECOND, "window_seconds": 1},
    {"tool": "web:*", "max_calls": CALLS_PER_SECOND, "window_seconds": 1},
]
"""Its three nearest scopes. Its buckets are always split by caller: none is really global."""


@asynccontextmanager
async def tollgate(folder: Path, *, rates: bool) -> AsyncIterator[Ready]:
    """A `ControlTower` with policy, manifest and JSONL audit; with `rates`, a limiter too."""
    lib = _load("tollgate")
    policy = folder / "policy.yaml"
    policy.write_text(TOLLGATE_POLICY)
    manifest = folder / "manifest.yaml"
    manifest.write_text(TOLLGATE_MANIFEST)
    log = folder / "audit.jsonl"
    limiter = lib.InMemoryRateLimiter(TOLLGATE_RATES) if rates else None
    sink = lib.JsonlAuditSink(log)
    tower = lib.ControlTower(
        lib.YamlPolicyEvaluator(policy),
        lib.AutoApprover(),
        sink,
        rate_limiter=limiter,
        registry=lib.ToolRegistry(manifest),
    )
    who = lib.AgentContext(agent_id="alice", version="1", owner="team")
    why = lib.Intent(action="search", reason="benchmark")
    read = lib.Effect.READ

    async def once() -> Any:
        request = lib.ToolRequest("web:search", "search", "page", read, ARGUMENTS)
        return await tower.execute_async(who, why, request, lambda: search(**ARGUMENTS))

    async def batch(calls: int) -> None:
        for _ in range(calls):
            await once()

    assert await once() == ANSWER
    try:
        yield Ready(
            batch,
            before_slice=limiter.reset if limiter else None,
            evidence=lambda calls: lines_a_call([log], calls + 1, 1),
        )
    finally:
        sink.close()


@asynccontextmanager
async def fastmcp(folder: Path, *, middlewares: bool) -> AsyncIterator[Ready]:
    """`FastMCP.call_tool`, which runs the server's middlewares without a client or a wire."""
    server: Any = _load("fastmcp").FastMCP("benchmark")
    server.tool(search)
    log = folder / "fastmcp.log"
    with file_logger(folder.name, log) as logger:
        if middlewares:
            package = "fastmcp.server.middleware"
            rate = _load(f"{package}.rate_limiting").RateLimitingMiddleware
            timing = _load(f"{package}.timing").TimingMiddleware
            logging = _load(f"{package}.logging").StructuredLoggingMiddleware
            server.add_middleware(rate(max_requests_per_second=CALLS_PER_SECOND))
            server.add_middleware(timing(logger))
            server.add_middleware(logging(logger=logger))

        async def batch(calls: int) -> None:
            for _ in range(calls):
                await server.call_tool("search", ARGUMENTS)

        answer = await server.call_tool("search", ARGUMENTS)
        assert answer.structured_content == {"result": ANSWER}
        lines = 3 if middlewares else 0
        yield Ready(batch, evidence=lambda calls: lines_a_call([log], calls + 1, lines))


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{name} is not installed") from error
