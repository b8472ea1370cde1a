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


def test_every_wall_on_the_page_has_its_test() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = page.split("| tried |")[1].split("| not proved")[0]
    rows = re.findall(r"^\| (.+) \| (.*) \| (.+) \| `(.+)` \|$", table, re.MULTILINE)

    assert len(rows) == len(re.findall(r"^\|(?!---)", table, re.MULTILINE)) >= 30
    for _, level, kernel, proof in rows:
        file, _, name = proof.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"def {name.split('::')[-1]}\(", text), proof
        assert kernel in ("any", "6.18", "6.18, 6.1"), proof
        assert level in ("", "all", "none", "sandboxes", "network", "standard", "strict, standard")
