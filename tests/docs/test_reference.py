from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from callgate.audit.events import SEVERITY, Record
from callgate.cli.app import app
from callgate.errors import AuditUnavailable, CallgateError
from callgate.policy import PolicyError
from callgate.telemetry import names

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def generated() -> dict[str, Any]:
    pages: dict[str, Any] = runpy.run_path(str(REFERENCE / "generate.py"))["PAGES"]
    return pages


@pytest.mark.parametrize("name", sorted(generated()))
def test_a_page_says_what_the_code_says(name: str) -> None:
    committed = (REFERENCE / name).read_text(encoding="utf-8")

    assert committed == generated()[name](), "run: python docs/reference/generate.py"


def test_the_page_has_every_command_and_option_that_the_help_shows() -> None:
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## callgate(.*)$", page, re.MULTILINE)
    assert "" in sections

    for section in sections:
        helped = CliRunner().invoke(app, [*section.split(), "--help"], env={"COLUMNS": "200"})
        shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", helped.output))
        shown -= {"--help", "--install-completion", "--show-completion"}

        assert helped.exit_code == 0
        assert {option for option in shown if f"`{option}" not in page} == set()


def rows(page: str) -> dict[str, list[str]]:
    """The table rows of a page whose first cell is code: that word → the other cells."""
    text = (REFERENCE.parent / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| (`[^|]+`) \|(.*)\|$", text, re.MULTILINE)
    return {
        name: [cell.strip() for cell in cells.split("|")]
        for names, cells in found
        for name in re.findall(r"`([^`]+)`", names)
    }


def every_error(kind: type[CallgateError] = CallgateError) -> list[type[CallgateError]]:
    below = [error for sub in kind.__subclasses__() for error in every_error(sub)]
    ours = "code" in vars(kind) and kind.__module__.startswith("callgate.")
    return [kind, *below] if ours else below


def test_the_list_of_errors_is_whole() -> None:
    assert {CallgateError, PolicyError} & set(every_error()) == {PolicyError}
    assert len(every_error()) > 20


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_the_page_of_errors_has_each_with_its_number(error: type[CallgateError]) -> None:
    name, number, retryable, _ = rows("errors.md")[error.code]

    assert (name, int(number)) == (f"`{error.__name__}`", error.jsonrpc)
    if error is not AuditUnavailable:  # the one that is both
        assert retryable == ("yes" if error.retryable else "no")


def test_the_page_of_the_audit_has_every_event_with_its_severity() -> None:
    text = (REFERENCE.parent / "audit.md").read_text(encoding="utf-8")
    table = rows("audit.md")

    assert {event for event in SEVERITY if f"`{event}`" not in text} == set()
    stated = {event: table[event][0] for event in SEVERITY if event in table}
    assert stated == {event: SEVERITY[event] for event in stated}
    assert len(stated) > 15


def test_the_page_of_the_audit_has_every_member_of_a_record() -> None:
    assert set(Record.__struct_fields__) <= rows("audit.md").keys()


def test_the_page_of_telemetry_has_every_metric() -> None:
    text = (REFERENCE.parent / "telemetry.md").read_text(encoding="utf-8")
    short = {"callgate.call.duration.count": "`.count`", "callgate.queue.wait.count": "`.count`"}
    metrics = [
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value.startswith("callgate.")
    ]

    assert {metric for metric in metrics if short.get(metric, f"`{metric}`") not in text} == set()
