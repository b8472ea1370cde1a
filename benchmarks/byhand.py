"""What a careful user writes without a gate: limiters, semaphores, a timeout and a JSON log.

The base of every ratio, so it is written to be fast where a user would take the trouble:
orjson rather than json, limiters and semaphores made once, one dict lookup each. The log
goes through `logging.FileHandler`, which flushes every record to the kernel: like
callgate's audit it survives `kill -9`, and like it it is not fsynced.

It is still less than the gate: the limiters are passed one after another (a call refused
by the third has paid the first two), nothing refuses (they wait), keys are never forgotten
and the log can be edited unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from aiolimiter import AsyncLimiter

if TYPE_CHECKING:
    from pathlib import Path

CALLS_PER_SECOND = 1_000_000
"""Far above what one loop can do, so that nothing ever waits."""
AT_ONCE = 1_000
TIMEOUT_S = 15.0

Tool = Callable[..., Awaitable[Any]]


@contextmanager
def file_logger(name: str, path: Path) -> Iterator[logging.Logger]:
    """A logger that writes bare messages to one file and nowhere else."""
    logger = logging.getLogger(f"benchmarks.{name}")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()


class ByHand:
    """Three rate scopes, two concurrency scopes, a deadline and two log lines a call."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._tools: dict[tuple[str, str], Tool] = {}
        self._all_rate = _limiter()
        self._caller_rates: defaultdict[str, AsyncLimiter] = defaultdict(_limiter)
        self._agent_rates: defaultdict[str, AsyncLimiter] = defaultdict(_limiter)
        self._all_slots = asyncio.Semaphore(AT_ONCE)
        self._agent_slots = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONCE))

    def register(self, agent: str, name: str, tool: Tool) -> None:
        """Offer a tool."""
        self._tools[agent, name] = tool

    async def call(
        self, agent: str, name: str, arguments: Mapping[str, Any], *, caller: str
    ) -> Any:
        """Run the tool under all limits, with a record before and after."""
        tool = self._tools[agent, name]
        request_id = str(uuid.uuid4())
        async with (
            self._all_rate,
            self._caller_rates[caller],
            self._agent_rates[agent],
            self._all_slots,
            self._agent_slots[agent],
        ):
            self._record("tool.call.admitted", request_id, caller, agent, name)
            started = time.perf_counter()
            event = "tool.call.completed"
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return await tool(**arguments)
            except TimeoutError:
                event = "tool.call.timed_out"
                raise
            except asyncio.CancelledError:
                event = "tool.call.cancelled"
                raise
            except Exception:
                event = "tool.call.failed"
                raise
            finally:
                duration_ms = round((time.perf_counter() - started) * 1000, 3)
                self._record(event, request_id, caller, agent, name, duration_ms)

    def _record(
        self,
        event: str,
        request_id: str,
        caller: str,
        agent: str,
        tool: str,
        duration_ms: float | None = None,
    ) -> None:
        record = {
            "ts": datetime.now(UTC).isoformat(),
            "event": event,
            "request_id": request_id,
            "caller": caller,
            "agent": agent,
            "tool": tool,
            "duration_ms": duration_ms,
        }
        self._logger.info(orjson.dumps(record).decode())


def _limiter() -> AsyncLimiter:
    return AsyncLimiter(CALLS_PER_SECOND, 1)
