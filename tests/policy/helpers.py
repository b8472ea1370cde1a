"""Small policies to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callgate.model import ANY, LaneSpec
from callgate.policy import Policy, PolicyError, Problem, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}


def problems(text: str, **options: Any) -> tuple[Problem, ...]:
    """Everything that is wrong with a policy."""
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text, **options)
    return caught.value.problems


def outcome(text: str) -> Policy | PolicyError:
    """What becomes of a text; nothing else may."""
    try:
        return Policy.parse(text)
    except PolicyError as error:
        return error


def only_problem(text: str, **options: Any) -> Problem:
    (problem,) = problems(text, **options)
    return problem


def places(text: str) -> list[tuple[int, int]]:
    return [(problem.line, problem.column) for problem in problems(text)]


def lane(
    text: str | Policy, agent: str = "web", tool: str = "search", caller: str = ANY
) -> LaneSpec:
    """What a policy says of a listed tool."""
    policy = text if isinstance(text, Policy) else Policy.parse(text)
    return policy.lane(caller, agent, tool, agent=agent, tool=tool)


def rows(policy: Policy, tool: str | None = "search", caller: str | None = None) -> dict[str, Row]:
    """The rows of `explain` for the agent `web`, by key; scopes of one key by `key scope`."""
    found: dict[str, Row] = {}
    for row in policy.explain("web", tool, caller):
        name = f"{row.key} {row.scope}" if row.key in ("rate", "concurrency") else row.key
        assert name not in found
        found[name] = row
    return found


def write(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files next to one another; the first one's path."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (path / name).write_bytes(data)
    return path / next(iter(files))


def callgate(*arguments: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:  # noqa: A002
    """The command as a user runs it; bounded."""
    return subprocess.run(
        [sys.executable, "-c", "from callgate.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        input=input,
        text=True,
        timeout=60,
    )
