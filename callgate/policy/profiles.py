"""What holds where neither an agent nor `defaults` says anything.

Pure. `guarded` has the values of OpenSentience's defaults and is a policy file's default;
`interactive` is for a person at a client who would rather wait than be refused, and whose
agents may start cold from a package index.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from callgate.policy.schema import Defaults, PolicyFile

_COMMON = {
    "cancel_grace": "5s",
    "on_ignored_cancel": "release",
    "protocol": "mcp",
    "denials": "result",
    "tasks": "refuse",
    "requests": {"timeout": "300s"},
}


def _defaults(values: dict[str, Any]) -> Defaults:
    """Through the model of the whole file, which is built anyway."""
    return PolicyFile.model_validate({"defaults": values}).defaults


PROFILES = MappingProxyType(
    {
        "guarded": _defaults(
            _COMMON
            | {
                "timeout": "15s",
                "max_timeout": "60s",
                "concurrency": 3,
                "queue": 0,
                "rate": "60/minute",
                "max_frame_bytes": "4MiB",
                "handshake": "10s",
            }
        ),
        "interactive": _defaults(
            _COMMON
            | {
                "timeout": "60s",
                "max_timeout": "300s",
                "concurrency": 16,
                "queue": 64,
                "rate": {"limit": "600/minute", "on_limit": "wait"},
                "max_frame_bytes": "16MiB",
                "handshake": "120s",
            }
        ),
    }
)

NOTHING = _defaults({})
CONTAINED = _defaults(
    {"containment": {"memory": "512Mi", "cpu": "1000m", "disk": "1Gi", "pids": 64}}
)
"""The seeds' limits, for an agent that asks for containment and leaves these out."""
