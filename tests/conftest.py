"""For all tests: the size of the property tests, and one table of what could not be tested here."""

from __future__ import annotations

import os
import re
from collections import Counter
from textwrap import shorten
from typing import TYPE_CHECKING, Final

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest import TerminalReporter  # noqa: PT013  # a type alone

FULL = os.environ.get("CALLGATE_RELIABILITY") == "full"
"""`make reliability`: the property tests at full size."""

# No deadline: a noisy machine is not a failing example.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile(
    "full",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("full" if FULL else "quick")

REMEDIES: Final = (
    ("make compat", r"make compat$"),
    ("make debian", r"^qemu was not asked for|Debian.s kernel was not asked for$"),
    ("make test CALLGATE_VM=uml", r"^uml was not asked for"),
    ("make debian proves the same elsewhere", r"^uml: uml does not boot"),
    ("apt install user-mode-linux, or make debian", r"^uml: "),
    ("apt install qemu-system-x86, on Debian", r"^qemu: "),
    ("run it as root", r"^root: |^only root"),
    ("apt install bubblewrap; callgate doctor says more", r"bwrap|^tmpfs: |^no sandbox"),
    ("apt install libseccomp2", r"^seccomp: "),
    ("Linux 5.13 or newer", r"^landlock_files: "),
    ("Linux 6.12 or newer", r"^landlock: "),
    ("root, or a service with Delegate=yes; or make debian", r"^cgroup|^no .*(controller|groups)"),
    ("an older kernel", r"^freezer: "),
    ("apt install nodejs", r"\bnode\b"),
    ("apt install the program", r"not on PATH|no such program"),
    ("pip install what it names", r"is not installed|could not import"),
    ("Linux", r"/proc|Linux|POSIX|for glibc|^linux: |Windows"),
    ("another Python", r"built without|brings no"),
)
"""How to get what a test was skipped for the want of, by its reason; the first that fits."""
UNKNOWN_REMEDY: Final = "-"
REASON_WIDTH: Final = 56
"""A line of the table fits a terminal."""


def remedy(reason: str) -> str:
    """Return what would make tests with this reason to be skipped run."""
    return next((what for what, form in REMEDIES if re.search(form, reason)), UNKNOWN_REMEDY)


def skip_table(reasons: Iterable[str]) -> list[str]:
    """Return a line for each reason: how many tests had it, and how to get them to run."""
    counts = sorted(Counter(reasons).items(), key=lambda each: (-each[1], each[0]))
    return [
        f"{count:5}  {shorten(reason, REASON_WIDTH, placeholder=' …'):{REASON_WIDTH}}  "
        f"{remedy(reason)}"
        for reason, count in counts
    ]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Show why tests were skipped: one table, in the place of a line for each."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons = [each.longrepr[2].removeprefix("Skipped: ") for each in skipped]
    terminalreporter.section("not tested here: how often, why, and what it takes")
    for line in skip_table(reasons):
        terminalreporter.write_line(line)
