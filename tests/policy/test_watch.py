from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from callgate.cli import watch
from callgate.cli.watch import Watcher
from callgate.policy import Policy, PolicyError

if TYPE_CHECKING:
    from pathlib import Path

ONE = "agents: {one: {}}\n"
TWO = "agents: {two: {}}\n"
BAD = "agents: [\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(ONE)
    return path


@pytest.fixture
def watcher(file: Path) -> Watcher:
    watching = Watcher(file)
    assert isinstance(agreed(watching), Policy)
    return watching


def agreed(watcher: Watcher) -> Policy | PolicyError | None:
    """Return what is told once nothing changes any more: a new manifest takes a third look."""
    looks = [watcher.look() for _ in range(3)]
    assert looks[0] is None, "told after one look"
    told = [each for each in looks if each is not None]
    assert len(told) <= 1
    return told[0] if told else None


def agents(found: Policy | PolicyError | None) -> frozenset[str]:
    assert isinstance(found, Policy)
    return found.agents


def test_a_file_that_stays_as_it_is_is_no_news(watcher: Watcher) -> None:
    assert [watcher.look() for _ in range(3)] == [None] * 3


def test_what_was_loaded_is_no_news(file: Path) -> None:
    assert Watcher(file, Policy.load(file)).look() is None


async def test_a_change_between_loading_and_watching_is_told(file: Path) -> None:
    loaded = Policy.load(file)
    file.write_text(TWO)  # noqa: ASYNC240  # nobody waits for this loop

    async with asyncio.timeout(10):
        found = await anext(watch.watch(file, since=loaded))

    assert agents(found) == {"two"}


def test_a_change_is_told_once(watcher: Watcher, file: Path) -> None:
    file.write_text(TWO)

    assert agents(agreed(watcher)) == {"two"}
    assert [watcher.look() for _ in range(3)] == [None] * 3


def test_a_file_that_is_replaced_by_a_rename_has_changed(watcher: Watcher, file: Path) -> None:
    other = file.with_suffix(".new")
    other.write_text(TWO)
    other.rename(file)

    assert agents(agreed(watcher)) == {"two"}


def test_a_change_that_keeps_size_and_time_is_seen_by_its_rename(
    watcher: Watcher, file: Path
) -> None:
    before = file.stat()
    other = file.with_suffix(".new")
    other.write_text(TWO)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)

    assert agents(agreed(watcher)) == {"two"}


def test_a_touched_file_with_the_same_text_is_no_news(watcher: Watcher, file: Path) -> None:
    os.utime(file, ns=(1, 1))

    assert watcher.look() is None


def test_a_bad_file_is_one_error_and_a_good_one_after_it_is_told(
    watcher: Watcher, file: Path
) -> None:
    file.write_text(BAD)
    assert isinstance(agreed(watcher), PolicyError)
    assert watcher.look() is None

    file.write_text(ONE)
    assert agents(agreed(watcher)) == {"one"}


def test_a_missing_file_is_one_error(watcher: Watcher, file: Path) -> None:
    file.unlink()

    assert isinstance(agreed(watcher), PolicyError)
    assert watcher.look() is None

    file.write_text(ONE)
    assert agents(agreed(watcher)) == {"one"}


def test_a_manifest_is_watched_from_when_it_is_named(watcher: Watcher, file: Path) -> None:
    manifest = file.with_name("agent.json")
    manifest.write_text("{}")
    file.write_text("agents: {one: {manifest: agent.json}}\n")
    assert isinstance(agreed(watcher), Policy)
    assert [watcher.look() for _ in range(2)] == [None] * 2

    manifest.write_text('{"execution_limits": {"max_concurrent_calls": 1}}')

    found = agreed(watcher)
    assert isinstance(found, Policy)
    assert {row.value for row in found.explain("one") if row.key == "concurrency"} == {"1"}
    assert watcher.look() is None


def test_a_manifest_that_is_mended_mends_the_policy(watcher: Watcher, file: Path) -> None:
    manifest = file.with_name("agent.json")
    manifest.write_text("{}")
    file.write_text("agents: {one: {manifest: agent.json}}\n")
    assert isinstance(agreed(watcher), Policy)
    watcher.look()

    manifest.write_text("{")
    broken = agreed(watcher)
    assert isinstance(broken, Policy)
    assert [problem.path for problem in broken.kept] == ["agents.one.manifest"]
    manifest.write_text("{}")

    mended = agreed(watcher)
    assert isinstance(mended, Policy)
    assert mended.kept == ()


def test_a_manifest_that_is_no_longer_named_is_no_longer_watched(
    watcher: Watcher, file: Path
) -> None:
    manifest = file.with_name("agent.json")
    manifest.write_text("{}")
    file.write_text("agents: {one: {manifest: agent.json}}\n")
    assert isinstance(agreed(watcher), Policy)
    file.write_text(TWO)
    assert isinstance(agreed(watcher), Policy)

    manifest.write_text('{"a": 1}')

    assert [watcher.look() for _ in range(2)] == [None] * 2


def test_a_change_in_the_middle_of_reading_is_not_lost_and_what_was_read_is_not_told(
    watcher: Watcher, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Policy.load

    def slow_load(path: Path, **options: Any) -> Policy:
        policy = load(path, **options)
        file.write_text("agents: {three: {}}\n")
        return policy

    file.write_text(TWO)
    monkeypatch.setattr(Policy, "load", slow_load)
    assert watcher.look() is None
    monkeypatch.undo()

    assert agents(agreed(watcher)) == {"three"}


def test_a_change_of_a_manifest_in_the_middle_of_reading_is_not_lost(
    watcher: Watcher, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Policy.load
    manifest = file.with_name("agent.json")
    manifest.write_text("{}")
    changed = '{"execution_limits": {"max_concurrent_calls": 1}}'

    def slow_load(path: Path, **options: Any) -> Policy:
        policy = load(path, **options)
        manifest.write_text(changed)
        return policy

    file.write_text("agents: {one: {manifest: agent.json}}\n")
    monkeypatch.setattr(Policy, "load", slow_load)
    assert watcher.look() is None  # it names a manifest whose stamp nobody has seen
    manifest.write_text("{}")
    assert watcher.look() is None
    monkeypatch.undo()

    found = agreed(watcher)
    assert isinstance(found, Policy)
    assert {row.value for row in found.explain("one") if row.key == "concurrency"} == {"1"}


def replace(file: Path, text: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


async def test_watching_yields_changes_and_not_what_was_there(file: Path) -> None:
    changes = watch.watch(file, interval=0.001)
    try:
        async with asyncio.timeout(30):
            pending = asyncio.ensure_future(anext(changes))
            # The first look is in a thread; what is written before its end was there.
            number = 0
            while not pending.done():
                number += 1
                replace(file, f"agents: {{a{number}: {{}}}}\n")
                await asyncio.wait([pending], timeout=0.01)
            assert agents(pending.result()) != {"one"}
    finally:
        await changes.aclose()  # type: ignore[attr-defined]
