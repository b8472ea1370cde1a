"""What is wrong with a policy: every problem, where it stands, and what to write instead.

Pure. Problems never hold what stands under a key that may hold a secret (a token, an
address with a password): an error text ends in terminals, logs and bug reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from callgate.errors import ConfigError
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PROBLEMS = 200
"""More than anybody fixes in one go; bounds the work on a hostile file."""

SECRET_KEYS = frozenset({"token", "env", "command", "state"})
"""Neither the values nor the keys under these are ever shown."""
HIDDEN = "a value that is not shown"

Path = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True, gc=False):
    """One thing to change. `line` and `column` start at 1."""

    path: str
    """Keys from the top, with dots: `agents.web.rate`."""
    line: int
    column: int
    found: str
    expected: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """Return the sentence, without the position."""
        where = f"{self.path}: " if self.path else ""
        hint = f' (did you mean "{self.suggestion}"?)' if self.suggestion else ""
        return quoted(f"{where}found {self.found}, expected {self.expected}{hint}")


class PolicyError(ConfigError):
    """Raised when a policy cannot be used; a former policy stays in force."""

    code = "policy.invalid"

    def __init__(self, problems: Iterable[Problem], *, source: str = "<policy>") -> None:
        super().__init__()
        every = sorted(problems, key=lambda problem: (problem.line, problem.column))
        self.problems = tuple(every[:MAX_PROBLEMS])
        self.more = len(every) - len(self.problems)
        """How many were left out."""
        self.source = source

    def describe(self) -> str:
        lines = [render(problem, self.source) for problem in self.problems]
        if self.more:
            lines.append(f"{quoted(self.source)}: and {self.more} more")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        problems = [msgspec.structs.asdict(problem) for problem in self.problems]
        return super().as_dict() | {"source": self.source, "problems": problems}


def render(problem: Problem, source: str) -> str:
    """Return one line in the form that editors and terminals make clickable."""
    return f"{quoted(source)}:{problem.line}:{problem.column}: {problem.message}"


def dotted(path: Path) -> str:
    """Return a path for people: `tools.read_*.timeout`, `command[2]`; it ends at a secret key."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
        if part in SECRET_KEYS:
            break
    return text
