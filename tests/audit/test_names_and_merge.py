from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from callgate.audit.files import load_key
from callgate.audit.merge import PER_SECOND, Merger
from callgate.audit.names import caller_name, safe_tool

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"k" * 32


def test_a_caller_of_the_policy_is_shown_by_name() -> None:
    assert caller_name("ci-bot", {"ci-bot"}, KEY) == "ci-bot"
    assert caller_name("anonymous", (), KEY) == "anonymous"


def test_another_caller_is_shown_by_a_keyed_pseudonym() -> None:
    expected = hmac.new(KEY, b"bob@example.org", hashlib.sha256).hexdigest()[:12]

    assert caller_name("bob@example.org", {"ci-bot"}, KEY) == "~" + expected
    assert caller_name("bob@example.org", {"ci-bot"}, b"other") != "~" + expected
    assert len(caller_name("\ud800", (), KEY)) == 13


@pytest.mark.parametrize("name", ["search", "fs/read_file", "a.b-c", "x" * 128])
def test_a_harmless_tool_name_is_shown(name: str) -> None:
    assert safe_tool(name) == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a\n", 'a"', "é", "٣"])
def test_any_other_tool_name_is_left_out(name: str) -> None:
    assert safe_tool(name) is None


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = load_key(tmp_path / "audit")

    assert len(key) == 32
    assert load_key(tmp_path / "audit") == key
    assert (tmp_path / "audit" / "key").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in (tmp_path / "audit").iterdir()] == ["key"]


def test_processes_that_start_at_once_share_one_key(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from callgate.audit.files import load_key;"
        "print(load_key(pathlib.Path(sys.argv[1])).hex())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]

    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    keys = set()
    for process in processes:
        with process:
            assert process.stdout is not None
            keys.add(process.stdout.read())

    assert len(keys) == 1
    assert len(keys.pop().strip()) == 64


def test_a_damaged_key_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(OSError, match="remove it"):
        load_key(tmp_path)


def test_beyond_a_hundred_a_second_refusals_are_not_written_one_by_one() -> None:
    merger = Merger()

    written = sum(merger.offer(now_ns) for now_ns in range(250))

    assert written == PER_SECOND == 100


def test_the_next_second_has_a_hundred_of_its_own() -> None:
    merger = Merger()

    assert [sum(merger.offer(now_ns) for _ in range(101)) for now_ns in (5, 1_000_000_005)] == [
        100,
        100,
    ]
