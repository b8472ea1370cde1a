"""What the page of the mounts says of them is what their adapters say."""

from __future__ import annotations

import runpy

from tests.docs.reader import ROOT
from tests.mounts.contract import Claim
from tests.mounts.runtimes import RUNTIMES

MOUNTS = ROOT / "docs" / "mounts"
PAGE = (MOUNTS / "index.md").read_text(encoding="utf-8")


def test_the_index_of_mounts_is_what_the_adapters_say() -> None:
    made = runpy.run_path(str(MOUNTS / "generate.py"))["made"]

    assert made(PAGE) == PAGE, "run: python docs/mounts/generate.py"


def test_every_reason_is_on_the_page() -> None:
    for runtime in RUNTIMES:
        for reason in (*runtime.cannot.values(), *runtime.findings.values()):
            assert reason in PAGE
    assert all(f"| {claim.value} |" in PAGE for claim in Claim)
