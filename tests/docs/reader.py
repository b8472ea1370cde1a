"""Tries every example of a page, as a reader would.

A page is played from top to bottom in a directory of its own:

- a `yaml` block with `version:` is a policy: it must be valid, and from there on it is the
  directory's `callgate.yaml` (before the first one, the first one is); any other `yaml` block is
  part of one: the keys of an agent, or keys of the file;
- a `python` block is a program and must end with 0; `python requires=X` needs the package X;
- a block with `file=NAME` is that file of the directory, which is the home of a user without any
  other;
- of an `sh` block the lines with `callgate check`, `explain`, `schema`, `audit`, `init`, `wrap` or
  `unwrap` are run and must exit with 0, or with N if the line ends with `# exit N`;
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

from typer.testing import CliRunner

from callgate import Policy, PolicyError
from callgate.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

NOT_TRIED = {
    "": "a drawing, or output of something that is not run",
    "json": "what another program has in its configuration",
    "jsonc": "the same with comments",
    "text": "output; compared if it stands right behind what prints it",
    "toml": "another tool's configuration",
}
TRIED_COMMANDS = tuple(
    f"callgate {name}"
    for name in (
        *("check", "explain", "schema", "audit", "init", "wrap", "unwrap"),
        *("calls", "stats", "runs"),
    )
)
MOVES = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "OPENCODE_CONFIG")
"""Variables that lead out of the directory."""

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
    def file(self) -> str | None:
        named = re.search(r"file=(\S+)", self.info)
        return named[1] if named else None

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

    def __init__(self, directory: Path, *, strict: bool = True) -> None:
        """A warning is a failure if it is `strict`."""
        self.directory = directory
        self.printed: dict[int, str] = {}
        self._options = ["-W", "error"] if strict else []

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
        if block.file is not None:
            (self.directory / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "yaml" and is_policy(block.text):
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
            [sys.executable, *self._options, file.name],
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
        environment = {"HOME": str(self.directory), **dict.fromkeys(MOVES)}
        result = CliRunner().invoke(app, arguments, env=environment)
        assert result.exit_code == code, result.output
        return result.output


def matches(printed: str, expected: str) -> bool:
    """Whether it is what was printed, blanks at the ends of lines aside."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(expected).split("…"))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def missing(page: str) -> set[str]:
    """The packages that a page needs and that are not here."""
    return {name for block in blocks(page) for name in block.requires if not _is_here(name)}


def _is_here(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is a part of
        return False


def play(page: str, directory: Path, *, strict: bool = True) -> None:
    """Try a page of the documentation, named by its path; all that it needs must be here."""
    text = (ROOT / page).read_text(encoding="utf-8")
    absent = missing(text)
    assert not absent, f"not installed: {', '.join(sorted(absent))}"
    Reader(directory, strict=strict).read(text)
