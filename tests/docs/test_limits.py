"""The pages of the limits: the same parts on each, and no name on them that the code has not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from callgate.audit.events import SEVERITY
from callgate.errors import CallgateError
from callgate.model import StopReason
from callgate.telemetry import names
from tests.docs.test_reference import every_error

LIMITS = Path(__file__).parents[2] / "docs" / "limits"
PAGES = sorted(LIMITS.glob("*.md"))
METRICS = {value for value in vars(names).values() if isinstance(value, str)}

of_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def words(page: Path) -> set[str]:
    """Everything that a page says in code."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", prose))


@of_page
def test_a_page_has_the_four_parts(page: Path) -> None:
    parts = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert parts == ["Overview", "Example", "Statistics", "Failure modes"]


@of_page
def test_every_metric_on_a_page_is_one(page: Path) -> None:
    named = {word.removesuffix("*") for word in words(page) if word.startswith("callgate.")}

    assert {one for one in named if not any(name.startswith(one) for name in METRICS)} == set()


@of_page
def test_every_event_and_code_on_a_page_is_one(page: Path) -> None:
    codes: set[str] = {error.code for error in every_error(CallgateError)}
    known = codes | set(SEVERITY)
    kinds = ("tool.", "agent.", "limit.", "policy.", "protocol.", "state.")
    parts = {part for word in words(page) for part in re.split(r"[\s,;=]+|: ", word)}
    named = {part for part in parts if part.startswith(kinds) and re.fullmatch(r"[a-z_.]+", part)}

    assert named - known - {"limit.type", "limit.usage", "limit.limit"} == set()


@of_page
def test_every_stop_reason_on_a_page_is_one(page: Path) -> None:
    named = {word for word in words(page) if re.fullmatch(r"[a-z_]+_limit", word)}

    assert named - set(get_args(StopReason)) - {"on_limit", "bandwidth_limit"} == set()
