"""What an agent leaves in a mount decides nothing about the launches that follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.launcher import LaunchRefused, LocalLauncher
from callgate.launcher.host import helper_program
from callgate.model import MountSpec
from tests.containment.agents import run, spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from callgate.model import LaunchSpec

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that agents may write to."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory of the host's that no policy names."""
    path = tmp_path / "private" / "key"
    path.parent.mkdir()
    path.write_text("secret\n")
    return path.parent


def agent(code: str, *mounts: MountSpec, **more: object) -> LaunchSpec:
    return spec(code, level="standard", mounts=mounts, **more)  # type: ignore[arg-type]


def writable(path: Path) -> MountSpec:
    return MountSpec(str(path), read_only=False)


def put(path: Path, content: str | bytes) -> Path:
    """Write a program."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o755)
    return path


def put_bwrap(folder: Path) -> None:
    """Put the true bwrap into a directory that is ours alone."""
    folder.chmod(0o755)
    put(folder / "bwrap", Path("/usr/bin/bwrap").read_bytes())


def replace_bwrap(folder: Path) -> None:
    (folder / "bwrap").rename(folder / "old")
    put(folder / "bwrap", f"#!/bin/sh\ntouch {folder}/ran\n")


def has_run(folder: Path) -> bool:
    return (folder / "ran").exists()


async def refusal(launcher: LocalLauncher, tried: LaunchSpec) -> str:
    with pytest.raises(LaunchRefused) as caught:
        await run(launcher, tried)
    return " ".join(caught.value.gaps.values())


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose only helper programs are on the PATH."""
    monkeypatch.setattr(helper_program, "DIRECTORIES", ())
    helper_program.bwrap.cache_clear()
    yield
    helper_program.bwrap.cache_clear()


async def test_a_bwrap_that_an_agent_plants_is_not_executed(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shared}:/usr/bin:/bin")
    code = f"""
import os
with open("{shared}/bwrap", "w") as file:
    file.write("#!/bin/sh\\ntouch {shared}/ran\\n")
os.chmod("{shared}/bwrap", 0o755)
"""
    async with LocalLauncher(root=root) as launcher:
        await run(launcher, agent(code, writable(shared)))
    helper_program.bwrap.cache_clear()  # as a new process of callgate would begin

    async with LocalLauncher(root=root) as launcher:
        said = await run(launcher, agent("print('walls')", writable(shared)))

    assert said.out == "walls\n"
    assert not has_run(shared)


@pytest.mark.usefixtures("only_path")
async def test_a_bwrap_on_the_path_that_agents_may_write_to_refuses_the_launch(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shared}:/usr/bin:/bin")
    put(shared / "bwrap", f"#!/bin/sh\ntouch {shared}/ran\n")

    async with LocalLauncher(root=root) as launcher:
        why = await refusal(launcher, agent("", writable(shared)))

    assert str(shared) in why
    assert not has_run(shared)


@pytest.mark.usefixtures("only_path")
async def test_a_mount_that_holds_bwrap_refuses_the_launch(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is ours alone: nothing is wrong with it but that the agent would write there."""
    put_bwrap(shared)
    monkeypatch.setenv("PATH", str(shared))

    async with LocalLauncher(root=root) as launcher:
        assert (await run(launcher, agent("print(1)"))).out == "1\n"
        why = await refusal(launcher, agent("", writable(shared)))

    assert f"{shared}/bwrap" in why


@pytest.mark.usefixtures("only_path")
async def test_a_bwrap_that_is_replaced_after_it_was_found_is_not_executed(
    root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bwrap(shared)
    monkeypatch.setenv("PATH", str(shared))

    async with LocalLauncher(root=root) as launcher:
        assert (await run(launcher, agent("print(1)"))).out == "1\n"
        replace_bwrap(shared)
        assert (await run(launcher, agent("print(2)"))).out == "2\n"

    assert not has_run(shared)


async def test_a_mount_that_holds_callgate_itself_refuses_the_launch(
    launcher: LocalLauncher,
) -> None:
    package = Path(helper_program.__file__).parents[3]

    why = await refusal(launcher, agent("", writable(package)))

    assert "which callgate runs" in why
