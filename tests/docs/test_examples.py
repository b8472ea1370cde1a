"""Every example of the documentation is tried; `reader` says how."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.reader import ROOT, Reader, play

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

WITH_THEIR_RUNTIMES = {
    "docs/mounts/crewai.md": "tests/mounts/test_crewai.py",
    "docs/mounts/google-adk.md": "tests/mounts/test_google_adk.py",
    "docs/mounts/mcp-sdk-v1.md": "tests/compat/mcp_v1/test_mcp_sdk_v1.py",
}
"""Pages whose packages exclude those of `make test`: `make compat` tries them, in these files."""

HERE = [
    name for page in PAGES if (name := page.relative_to(ROOT).as_posix()) not in WITH_THEIR_RUNTIMES
]


@pytest.mark.parametrize("page", HERE)
def test_everything_on_the_page_works(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    play(page, tmp_path)


@pytest.mark.parametrize(("page", "tests"), WITH_THEIR_RUNTIMES.items())
def test_a_page_that_is_not_tried_here_is_tried_with_its_runtime(page: str, tests: str) -> None:
    assert f'play("{page}"' in (ROOT / tests).read_text("utf-8")


def test_a_page_whose_package_is_missing_is_no_success(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python requires=nobody.here\n```\n", encoding="utf-8")

    with pytest.raises(AssertionError, match=r"nobody\.here"):
        play(str(page), tmp_path)


MOUNTS = sorted((ROOT / "docs" / "mounts").glob("*.md"))


@pytest.mark.parametrize(
    "page", [page for page in MOUNTS if page.stem != "index"], ids=lambda page: page.stem
)
def test_every_mount_has_a_page_with_before_and_after(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    example = ROOT / "examples" / f"mount_{page.stem.replace('-', '_')}.py"

    assert text.index("\nBefore:\n") < text.index("\nAfter") < text.index("\n## What to know\n")
    for said in ("**Refusals", "**Who calls", "annot", example.name):
        assert said in text
    assert example.exists()


def test_every_mount_that_the_index_names_can_be_looked_up() -> None:
    modules = {path.stem for path in (ROOT / "callgate" / "mounts").glob("*.py")}
    index = (ROOT / "docs" / "mounts" / "index.md").read_text(encoding="utf-8")
    rows = [line for line in index.splitlines() if "`callgate." in line and line.startswith("|")]

    assert len(rows) == len(MOUNTS) - 1
    for row in rows:
        named = re.search(r"`callgate\.(?:mounts\.)?(\w+)", row)
        assert named is not None
        assert named[1] in modules
        assert "](" in row


def links(page: Path) -> list[Path]:
    """The files that a page points to, whether they exist or not."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [
        (page.parent / target.partition("#")[0]).resolve()
        for target in targets
        if "://" not in target and not target.startswith("#")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            ahead += links(page)

    assert {page.relative_to(ROOT).as_posix() for page in set(PAGES) - reached} == set()


@pytest.mark.parametrize(
    "page",
    [
        "```yaml\nversion: 1\nagents: {web: {rat: 1/minute}}\n```",
        "```yaml\nconcurency: 3\n```",
        "```python\nimport sys\nsys.exit(3)\n```",
        "```python\nimport warnings\nwarnings.warn('old')\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```sh\ncallgate check missing.yaml\n```",
        "```yaml\nversion: 1\n```\n\n```sh\ncallgate check callgate.yaml # exit 1\n```",
        "```prolog\ntrue.\n```",
    ],
)
def test_an_example_that_does_not_work_is_found(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(AssertionError, match=r"^line \d+: "):
        Reader(tmp_path).read(page)


@pytest.mark.parametrize(
    "page",
    [
        "```yaml\ncontainment: {memory: 1Gi}\n```",
        "```yaml\naudit: {path: a}\n```",
        "```python\nprint(1, 2)\n```\n\n```text\n1 …\n```",
        "1. indented\n\n   ```python\n   if True:\n       print(1)\n   ```",
        "```sh\nmake nothing\ncallgate check missing.yaml  # exit 1\n```",
    ],
)
def test_an_example_that_works_passes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    Reader(tmp_path).read(page)
