"""callgate: the gate between agents and the tools they call.

The names below are imported when they are first used: `callgate run` must start an agent
before it pays for what only programs need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from callgate.errors import (
        AuditUnavailable,
        CallCanceled,
        CallEnded,
        CallgateError,
        CallRefused,
        CallTimedOut,
        ConcurrencyLimited,
        InputTooLarge,
        LimitInfo,
        OutputTooLarge,
        PolicyDenied,
        QuotaExceeded,
        RateLimited,
    )
    from callgate.model import ToolCall
    from callgate.mounts.guarded import guarded
    from callgate.policy import Policy, PolicyError
    from callgate.router import Job, Router

__all__ = [
    "AuditUnavailable",
    "CallCanceled",
    "CallEnded",
    "CallRefused",
    "CallTimedOut",
    "CallgateError",
    "ConcurrencyLimited",
    "InputTooLarge",
    "Job",
    "LimitInfo",
    "OutputTooLarge",
    "Policy",
    "PolicyDenied",
    "PolicyError",
    "QuotaExceeded",
    "RateLimited",
    "Router",
    "ToolCall",
    "__version__",
    "guarded",
]

_ELSEWHERE = {
    "Job": "callgate.router",
    "Policy": "callgate.policy",
    "PolicyError": "callgate.policy",
    "Router": "callgate.router",
    "ToolCall": "callgate.model",
    "guarded": "callgate.mounts.guarded",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "callgate.errors")), name)
    globals()[name] = value
    return value


def _version() -> str:
    """Return the installed version. The lookup takes milliseconds: only who asks waits."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("callgate")
    except PackageNotFoundError:  # run from a checkout
        return "0+unknown"
