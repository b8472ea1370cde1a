"""What SECURITY.md says is proved names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_proof_on_the_page_is_a_test() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = page.split("## What is proved, and where")[1].split("| not proved")[0]
    rows = [row.split("|")[-2].strip(" `") for row in re.findall(r"^\| .*\|$", table, re.MULTILINE)]

    proofs = [row for row in rows if "test" not in row.split("::")[0] and "::" in row]

    assert len(proofs) > 10
    for proof in proofs:
        file, _, name = proof.partition("::")
        text = (ROOT / "tests" / "containment" / f"test_{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"def test_{name}\(", text), proof
