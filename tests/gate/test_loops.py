"""The gate on the loop of the extra `speed`: what passes on asyncio's own passes there too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gate import helpers, test_noise, test_run
from tests.gate.helpers import REFERENCE, Gate, tool, words

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")


@pytest.fixture
def _with_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "ASYNCIO", helpers.ROOT)


def loops_of(gate: Gate) -> bool:
    """Whether the gate has loaded uvloop."""
    return "/uvloop/loop." in Path(f"/proc/{gate.process.pid}/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.usefixtures("_with_uvloop")
def test_uvloop_is_used_where_it_is_installed(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        assert loops_of(gate)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_gate_needs_no_uvloop(tmp_path: Path) -> None:
    with Gate(tmp_path, REFERENCE) as gate:
        gate.shake_hands()

        assert "greeting" in words(gate.ask(tool(1, "hello_world")))
        assert not loops_of(gate)


CLAIMS = (
    test_run.test_a_call_passes_and_a_clean_end_is_zero,
    test_run.test_a_cancel_reaches_the_work_and_frees_its_slot,
    test_run.test_progress_reaches_the_client,
    test_run.test_a_process_that_cannot_be_started_again_ends_the_gate,
    test_run.test_a_client_on_sockets_that_dies_takes_the_agent_with_it,
    test_run.test_a_runtime_agent_is_served_to_an_mcp_client,
    test_run.test_redirected_files_are_served,
    test_run.test_a_terminal_is_left_as_it_was_found,
    test_noise.test_both_at_once_do_not_deadlock,
)


@pytest.mark.usefixtures("_with_uvloop")
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_on_uvloop(claim: Callable[[Path], None], tmp_path: Path) -> None:
    claim(tmp_path)
