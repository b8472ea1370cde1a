"""The list of what is promised agrees with the tests that there are, both ways."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from tests.requirements import GAPS, REQUIREMENTS, SOURCES, Requirement

ROOT = Path(__file__).parents[1]
MEASURED = "measured: "
OF_THE_HOUSE = {"tests/test_requirements.py"}
"""Files of tests that prove no promise to users."""


def names_in(path: Path) -> set[str]:
    """The tests of a file by their names in it, found without importing it."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {
                f"{node.name}::{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def is_there(proof: str, root: Path = ROOT) -> bool:
    if proof.startswith(MEASURED):
        name = proof.removeprefix(MEASURED)
        return name.startswith("benchmarks/") and (root / name).is_file()
    file, _, name = proof.partition("::")
    return (root / file).is_file() and name in names_in(root / file)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda each: each.id)
def test_a_promise_has_proofs_and_each_of_them_exists(requirement: Requirement) -> None:
    missing = [proof for proof in requirement.proofs if not is_there(proof)]

    assert requirement.proofs
    assert missing == []


def test_every_file_of_tests_proves_a_promise() -> None:
    paths = [path for path in ROOT.glob("tests/**/test_*.py") if names_in(path)]
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    proofs = {proof.partition("::")[0] for each in REQUIREMENTS for proof in each.proofs}

    assert files - proofs - OF_THE_HOUSE == set(), "say in tests/requirements.py what they prove"


def test_every_benchmark_that_is_run_proves_a_promise() -> None:
    proofs = {proof for each in REQUIREMENTS for proof in each.proofs}

    assert {f"{MEASURED}benchmarks/{name}.py" for name in BENCHMARKS} - proofs == set()


def test_no_two_promises_have_one_name_or_say_the_same() -> None:
    assert len({each.id for each in REQUIREMENTS}) == len(REQUIREMENTS)
    assert len({each.claim for each in REQUIREMENTS}) == len(REQUIREMENTS)


def test_every_source_is_known_and_every_known_source_has_a_promise_or_a_gap() -> None:
    promised = {source for each in REQUIREMENTS for source in each.sources}
    left_open = {gap.source for gap in GAPS}

    assert promised | left_open == set(SOURCES)


def test_a_gap_says_why() -> None:
    assert [gap.claim for gap in GAPS if not gap.why] == []


def test_a_name_has_the_form_of_one() -> None:
    form = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+")

    assert [each.id for each in REQUIREMENTS if not form.fullmatch(each.id)] == []


@pytest.mark.parametrize(
    "proof",
    [
        "tests/test_nothing.py::test_a",
        "tests/test_some.py",
        "tests/test_some.py::test_c",
        "tests/test_some.py::helper",
        "tests/test_some.py::Helper::test_d",
        "measured: benchmarks/none.py",
        "measured: tests/test_some.py",
    ],
)
def test_a_proof_that_does_not_exist_is_noticed(proof: str, tmp_path: Path) -> None:
    some = tmp_path / "tests" / "test_some.py"
    some.parent.mkdir()
    some.write_text(
        "def test_a(): ...\nasync def test_b(): ...\ndef helper(): ...\n"
        "class TestIn:\n    def test_c(self): ...\nclass Helper:\n    def test_d(self): ...\n"
    )

    assert is_there("tests/test_some.py::test_a", tmp_path)
    assert is_there("tests/test_some.py::test_b", tmp_path)
    assert is_there("tests/test_some.py::TestIn::test_c", tmp_path)
    assert not is_there(proof, tmp_path)
