"""The names that dashboards and queries depend on. Pure.

The GenAI and MCP names left `opentelemetry-semantic-conventions` and no package carries
them, so they are spelled here; what the conventions do not name is under `callgate.`.
A name here is a contract: changing one is a line in the changelog.
"""

from __future__ import annotations

from typing import Final

SCOPE_NAME: Final = "callgate"
"""The instrumentation scope of our tracer and meter."""

# Span and metric attributes: OpenTelemetry GenAI and MCP conventions.
OPERATION_NAME: Final = "gen_ai.operation.name"
TOOL_NAME: Final = "gen_ai.tool.name"
AGENT_NAME: Final = "gen_ai.agent.name"
ERROR_TYPE: Final = "error.type"
METHOD_NAME: Final = "mcp.method.name"

EXECUTE_TOOL: Final = "execute_tool"
"""The operation, and the first word of our spans' names."""

MCP_TOOL_SPAN: Final = "tools/call"
"""How the MCP SDK's own tool spans begin; we enrich those instead of doubling them."""

# Span and metric attributes: ours.
REQUEST_ID: Final = "callgate.request_id"
OUTCOME: Final = "callgate.outcome"
SCOPE: Final = "callgate.scope"
"""A scope's kind, never its name: `global`, `caller`, `agent`, `tool` or `none`."""
LE: Final = "le"
"""A bucket's upper bound in seconds, as Prometheus spells it."""

SPAN_ATTRIBUTES: Final = frozenset(
    {OPERATION_NAME, TOOL_NAME, AGENT_NAME, ERROR_TYPE, REQUEST_ID, OUTCOME}
)
"""All that we ever put on a span. Arguments, results and messages are not among them."""

OK: Final = "ok"
"""The outcome of a call that returned; every other outcome but `SUSPENDED` is an error's code."""
SUSPENDED: Final = "tool.suspended"
"""The outcome of a call that asks a person and goes on later: neither an answer nor an error."""
OTHER: Final = "other"
"""Stands for a name that may not be shown."""
NO_SCOPE: Final = "none"
"""Stands for the scope of a refusal that no limit made, such as `policy.denied`."""

# Metrics.
CALLS: Final = "callgate.calls"
IN_FLIGHT: Final = "callgate.calls.in_flight"
REFUSALS: Final = "callgate.refusals"
SHADOW: Final = "callgate.shadow"
LATE: Final = "callgate.late"
DURATION_BUCKET: Final = "callgate.call.duration.bucket"
DURATION_SUM: Final = "callgate.call.duration.sum"
DURATION_COUNT: Final = "callgate.call.duration.count"
QUEUE_DEPTH: Final = "callgate.queue.depth"
QUEUE_WAIT_SUM: Final = "callgate.queue.wait.sum"
QUEUE_WAIT_COUNT: Final = "callgate.queue.wait.count"
AUDIT_DROPPED: Final = "callgate.audit.dropped"
REQUESTS: Final = "callgate.requests"
FRAMES_REJECTED: Final = "callgate.frames.rejected"
STRAYS: Final = "callgate.strays"
AGENT_CPU: Final = "callgate.agent.cpu.time"
AGENT_MEMORY: Final = "callgate.agent.memory.usage"
AGENT_DISK: Final = "callgate.agent.disk.usage"
AGENT_FILES: Final = "callgate.agent.files"
AGENT_PIDS: Final = "callgate.agent.pids"
AGENT_CONNECTIONS: Final = "callgate.agent.connections"
