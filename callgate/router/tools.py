"""In-process tools: functions that somebody registered, and what arguments they take.

The parameters are read once, so that a call whose arguments do not fit is refused before it
is charged, at the cost of two set comparisons.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

ToolFunction = Callable[..., Any]


class Tool:
    """One registered function."""

    __slots__ = ("_accepts", "_needs", "function", "is_sync")

    def __init__(self, function: ToolFunction) -> None:
        self.function = function
        self.is_sync = not _is_async(function)
        self._needs: frozenset[str] = frozenset()
        self._accepts: frozenset[str] | None = None
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # some builtins, and mocks before Python 3.11.4
            return
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters):
            raise TypeError("a tool's arguments bind as keywords; it has positional-only ones")
        self._needs = frozenset(p.name for p in named if p.default is p.empty)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._accepts = None if takes_any else frozenset(p.name for p in named)

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the arguments can be bound."""
        given: AbstractSet[str] = arguments.keys()
        if given == self._accepts:
            return True
        if self._accepts is None:
            return self._needs <= given and all(isinstance(name, str) for name in given)
        return self._needs <= given <= self._accepts


def _is_async(function: ToolFunction) -> bool:
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004  # an object with an async __call__
    )
