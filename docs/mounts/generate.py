"""The tables of `index.md`, from what the adapters of the contract say of their runtimes.

    python docs/mounts/generate.py

`tests/mounts/contract.py` has the claims, `tests/mounts/runtimes/` the runtimes and their reasons;
every reason is proven, since the test of its claim must fail.
"""

# ruff: noqa: INP001  # a script, not a package

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

PAGE = Path(__file__).parent / "index.md"
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.mounts.contract import Claim, Runtime  # noqa: E402  # found by the line above
from tests.mounts.runtimes import RUNTIMES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN = "<!-- {}: made by docs/mounts/generate.py -->\n"
END = "<!-- end -->\n"


def mounts() -> Iterator[str]:
    """Make the table of the mounts."""
    yield "| runtime | mount | page |\n|---|---|---|\n"
    for each in {each.title: each for each in RUNTIMES}.values():
        name = each.title.partition(",")[0]
        yield f"| {each.title} | `callgate.{each.mount}` | [{name}]({each.page}) |\n"


def claims() -> Iterator[str]:
    """Make the table of the claims, with what some runtimes cannot do."""
    yield "| claim | not in |\n|---|---|\n"
    for claim in Claim:
        yield f"| {claim.value} | {'; '.join(_reasons(claim))} |\n"


def _reasons(claim: Claim) -> Iterator[str]:
    """Say each reason once, after the runtimes that it holds for."""
    those: dict[str, dict[str, None]] = {}
    for each in RUNTIMES:
        reason = each.cannot.get(claim) or each.findings.get(claim)
        if reason is not None:
            those.setdefault(reason, {})[_short(each)] = None
    for reason, names in those.items():
        yield f"**{', '.join(names)}**: {reason}"


def _short(runtime: Runtime) -> str:
    """Name a runtime, and the way that it is mounted where that makes a difference."""
    return runtime.title.partition(",")[0] + (f" ({runtime.way})" if runtime.way else "")


def made(page: str) -> str:
    """Return the page with its tables as they should be."""
    for name, table in (("mounts", mounts), ("claims", claims)):
        begin = BEGIN.format(name)
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(END)
        if not found:
            raise ValueError(f"the page has no place for {name}")
        page = before + begin + "".join(table()) + END + after
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
