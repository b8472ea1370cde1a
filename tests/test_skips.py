"""What is not tested says so in one table, with what it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import UNKNOWN_REMEDY, remedy, skip_table
from tests.containment.capabilities import LACKS


@pytest.mark.parametrize("name", sorted(set(LACKS) - {"exit_status"}))  # a kernel's own habit
def test_everything_that_a_host_can_lack_has_a_remedy(name: str) -> None:
    assert remedy(f"{name}: it is not there") != UNKNOWN_REMEDY


def test_equal_reasons_are_counted_on_one_line_and_the_most_frequent_comes_first() -> None:
    lines = skip_table(["bwrap: bwrap is not on PATH", "root: not root", "root: not root"])

    assert [line.split()[0] for line in lines] == ["2", "1"]
    assert "run it as root" in lines[0]
    assert "apt install bubblewrap" in lines[1]


def test_a_reason_that_nobody_knows_a_remedy_for_is_still_in_the_table() -> None:
    (line,) = skip_table(["the moon is not full"])

    assert line.split() == ["1", "the", "moon", "is", "not", "full", UNKNOWN_REMEDY]


@pytest.fixture
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run of two skipped tests prints, with the table of all our tests."""
    folder = tmp_path_factory.mktemp("skips")
    (folder / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (folder / "test_two.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('each', [1, 2])\n"
        "def test_it(each): pytest.skip('root: not root')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout


def test_the_table_is_at_the_end_of_a_run(printed: str) -> None:
    assert "not tested here: how often, why, and what it takes" in printed
    assert skip_table(["root: not root"] * 2)[0] in printed
