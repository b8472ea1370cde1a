"""What a tool returned or raised, on its way through a task of ours.

A task shows its result and its exception to whoever prints it, and asyncio's debug mode prints
every task that takes long. A box shows neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Boxed:
    """A result, or an exception."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self.value = value
        self.error = error

    def open(self) -> Any:
        """Return or raise it."""
        if self.error is not None:
            raise self.error
        return self.value


async def boxed(work: Awaitable[Any]) -> Boxed:
    """Await something; what is no `Exception` passes, cancels above all."""
    try:
        return Boxed(await work)
    except Exception as error:  # noqa: BLE001  # it is not ours, and raised again in `open`
        return Boxed(None, error)


def boxed_call(function: Callable[[], Any]) -> Boxed:
    """Call something that does not await."""
    try:
        return Boxed(function())
    except Exception as error:  # noqa: BLE001  # as above
        return Boxed(None, error)
