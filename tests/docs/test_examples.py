"""Every example of the documentation is tried.

A page is played from top to bottom in a directory of its own, as a reader would:

- a `yaml` block with `version:` is a policy: it must be valid, and from there on it is the
  directory's `callgate.yaml` (before the first one, the first one is); any other `yaml` block is
  part of one: the keys of an agent, or keys of the file;
- a `python` block is a program and must end with 0; `python requires=X` is skipped where the
  package X is not installed, and says so;
- of an `sh` block the lines with `callgate check`, `explain`, `schema` or `audit` are run and must
  exit with 0, or with N if the line ends with `# exit N`;
- a `text` block right behind one of these two is what they print, `…` standing for anything.

Every other kind of block has to be listed below.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from callgate import Policy, PolicyError
from callgate.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

NOT_TRIED = {
    "": "a drawing, or output of something that is not run",
    "json": "what another program has in its configuration",
    "jsonc": "the same with comments",
    "text": "output; compared if it stands right behind what prints it",
    "toml": "another tool's configuration",
}
TRIED_COMMANDS = ("callgate check", "callgate explain", "callgate schema", "callgate audit")

PROGRAM_S = 30
"""For one example; most take half a second."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, what it says it is, and what directly follows it."""

    line: int
    info: str
    text: str
    follows: int | None
    """The line of the block that it stands right behind."""

    @property
    def kind(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def requires(self) -> list[str]:
        return re.findall(r"requires=(\S+)", self.info)


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    begun: tuple[int, str, str, list[str]] | None = None
    behind: int | None = None
    for number, line in enumerate(page.splitlines(), 1):
        fence = re.fullmatch(r"( *)(```+)(.*)", line)
        if begun is not None:
            start, info, closing, lines = begun
            if line == closing:
                found.append(Block(start, info, "\n".join(lines) + "\n", behind))
                begun, behind = None, start
            else:
                lines.append(line.removeprefix(closing[: closing.index("`")]))
        elif fence is not None:
            begun = number, fence[3].strip(), fence[1] + fence[2], []
        elif line.strip():
            behind = None
    if begun is not None:
        raise ValueError(f"line {begun[0]}: a block that does not end")
    return found


def is_policy(text: str) -> bool:
    return re.search(r"^version:", text, re.MULTILINE) is not None


def check_part(text: str) -> None:
    """Keys of an agent, or of the file; raises the more fitting error."""
    as_agent = "version: 1\nagents:\n  web:\n" + re.sub(r"^", "    ", text, flags=re.MULTILINE)
    try:
        Policy.parse(as_agent)
    except PolicyError:
        Policy.parse(f"version: 1\n{text}")


def commands(text: str) -> Iterator[tuple[list[str], int]]:
    """The lines of a shell block that are tried, and the exit code that they say they have."""
    for line in text.splitlines():
        if line.startswith(TRIED_COMMANDS):
            code = re.search(r"# exit (\d+)", line)
            yield shlex.split(line, comments=True)[1:], int(code[1]) if code else 0


class Reader:
    """Somebody who tries everything on a page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.printed: dict[int, str] = {}

    def read(self, page: str) -> None:
        found = blocks(page)
        policies = [block.text for block in found if block.kind == "yaml" and is_policy(block.text)]
        if policies:
            self._keep(policies[0])
        for block in found:
            try:
                self._try(block)
            except (AssertionError, PolicyError, subprocess.TimeoutExpired) as error:
                raise AssertionError(f"line {block.line}: {error}") from error

    def _keep(self, policy: str) -> None:
        (self.directory / "callgate.yaml").write_text(policy, encoding="utf-8")

    def _try(self, block: Block) -> None:
        if block.kind == "yaml" and is_policy(block.text):
            Policy.parse(block.text, base=self.directory)
            self._keep(block.text)
        elif block.kind == "yaml":
            check_part(block.text)
        elif block.kind == "python":
            self.printed[block.line] = self._run(block.text)
        elif block.kind == "sh":
            lines = commands(block.text)
            self.printed[block.line] = "".join(self._command(*line) for line in lines)
        elif block.kind == "text" and block.follows in self.printed:
            assert matches(self.printed[block.follows], block.text), self.printed[block.follows]
        else:
            assert block.kind in NOT_TRIED, f"unknown kind of block: {block.kind!r}"

    def _run(self, program: str) -> str:
        file = self.directory / "example.py"
        file.write_text(program, encoding="utf-8")
        environment = {**os.environ, "XDG_STATE_HOME": str(self.directory / "state")}
        done = subprocess.run(
            [sys.executable, "-W", "error", file.name],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _command(self, arguments: list[str], code: int) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result.output


def matches(printed: str, expected: str) -> bool:
    """Whether it is what was printed, blanks at the ends of lines aside."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(expected).split("…"))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def needed(page: Path) -> set[str]:
    names = {name for block in blocks(page.read_text("utf-8")) for name in block.requires}
    return {name for name in names if importlib.util.find_spec(name) is None}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_everything_on_the_page_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := needed(page):
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    monkeypatch.chdir(tmp_path)

    Reader(tmp_path).read(page.read_text(encoding="utf-8"))


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
