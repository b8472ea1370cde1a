"""The `callgate exec` and `runs` lines of the pages about processes are tried."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.launcher.host import survey

ROOT = Path(__file__).parents[2] / "docs"
PAGES = [
    ROOT / "containment.md",
    *(ROOT / "limits" / f"{name}.md" for name in ("memory", "cpu", "pids", "disk", "open-files")),
    ROOT / "limits" / "time.md",
]
LINE = re.compile(r"^callgate (exec|runs)\b(.*?)(?:# exit (\d+))?$", re.MULTILINE)


def examples() -> list[tuple[str, str, str, int]]:
    return [
        (page.name, match[1], match[2], int(match[3] or 0))
        for page in PAGES
        for match in LINE.finditer(page.read_text(encoding="utf-8"))
    ]


@pytest.fixture(scope="module")
def _able() -> None:
    host = survey.with_sandbox(survey.with_groups(survey.survey()))
    if not (host.bwrap.present and host.seccomp.present and host.tmpfs.present):
        pytest.skip(f"no sandbox: {host.bwrap.reason} {host.seccomp.reason} {host.tmpfs.reason}")
    if host.cgroups.reason:
        pytest.skip(f"no groups: {host.cgroups.reason}")


@pytest.mark.usefixtures("_able")
@pytest.mark.parametrize(("page", "command", "words", "status"), examples())
def test_an_example_ends_as_its_page_says(
    page: str,
    command: str,
    words: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    start = f"from callgate.cli.{command} import app; app()"

    done = subprocess.run(
        [sys.executable, "-c", start, *shlex.split(words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == status, (page, done.stdout[-500:], done.stderr[-500:])


def test_every_page_has_an_example() -> None:
    assert {page.name for page in PAGES} == {example[0] for example in examples()}
