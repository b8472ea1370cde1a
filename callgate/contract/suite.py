"""Runs the checks one after another, in one session as long as it is in order.

A check that fails, or an agent that ended, costs the next check a new process: one fault is
reported once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal

from callgate.contract.mcp import McpContract
from callgate.contract.results import (
    CHECKS,
    CheckFailed,
    CheckResult,
    CheckSkipped,
    Outcome,
    Times,
    Tools,
    UnknownCheck,
)
from callgate.contract.runtime import RuntimeContract

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    Check = Callable[[Any], Awaitable[str]]

Protocol = Literal["mcp", "runtime"]


async def run_contract(
    command: Sequence[str],
    protocol: Protocol = "mcp",
    *,
    tools: Tools | None = None,
    times: Times | None = None,
    stderr: int = asyncio.subprocess.DEVNULL,
    only: Collection[str] | None = None,
    progress: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Check the agent that `command` starts.

    `only` names the checks to make (`UnknownCheck` if there is none of a name); `progress` hears
    of each result at once.
    """
    make = McpContract if protocol == "mcp" else RuntimeContract
    contract: Any = make(command, tools or Tools(), times or Times(), stderr)
    runner = _Runner(contract, progress)
    checks: dict[str, Check] = dict(zip(CHECKS, contract.checks, strict=True))
    for name, data in contract.malformed.items():
        checks[f"malformed: {name}"] = _survival(contract, data)
    unknown = set(only or ()) - checks.keys()
    if unknown:
        raise UnknownCheck(f"there is no check {min(unknown)!r}; there are {', '.join(checks)}")
    try:
        for name, check in checks.items():
            if (only is None or name in only) and not runner.dead:
                await runner.run(name, check)
    finally:
        await runner.close()
    return runner.results


def _survival(contract: Any, data: bytes) -> Check:
    async def check(session: Any) -> str:
        await contract.survive(session, data)
        return ""

    return check


class _Runner:
    def __init__(self, contract: Any, progress: Callable[[CheckResult], None] | None) -> None:
        self._contract = contract
        self._progress = progress
        self._session: Any = None
        self.results: list[CheckResult] = []
        self.dead = False
        """Whether not even a handshake works; then there is nothing more to ask."""

    async def run(self, name: str, check: Check) -> None:
        started = time.monotonic()
        outcome: Outcome = "passed"
        try:
            detail = await check(await self._open())
        except CheckSkipped as skipped:
            outcome, detail = "skipped", str(skipped)
        except (CheckFailed, OSError) as failed:
            outcome, detail = "failed", str(failed)
            if isinstance(failed, OSError):
                detail = f"it cannot be started: {failed.strerror or type(failed).__name__}"
            self.dead = self._session is None
            await self.close()
        duration_ms = round((time.monotonic() - started) * 1000)
        result = CheckResult(name, outcome, detail, duration_ms)
        self.results.append(result)
        if self._progress is not None:
            self._progress(result)

    async def _open(self) -> Any:
        if self._session is not None and self._session.agent.ended:
            await self.close()
        if self._session is None:
            self._session = await self._contract.open()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.agent.close()
