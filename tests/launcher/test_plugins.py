"""Other people's launchers: how they are found, and the worked example."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate.launcher import Launchers, LaunchRefused, LocalLauncher, find_launcher
from callgate.model import EnvSpec, LaunchSpec, MountSpec, ResourceLimits
from tests.containment.agents import PATIENCE_S, read_all

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGINE = """#!/bin/sh
# Speaks like docker: writes down what it was told, and runs the command without a container.
echo "$@" >> "$ENGINE_LOG"
[ "$1" = run ] || exit 0
while [ "$1" != "an-image" ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module, with an engine that only talks like one."""
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    monkeypatch.setenv("CALLGATE_ENGINE", str(engine))
    monkeypatch.setenv("CALLGATE_IMAGE", "an-image")
    monkeypatch.setenv("ENGINE_LOG", str(tmp_path / "log"))
    spec = importlib.util.spec_from_file_location(
        "launcher_plugin", EXAMPLES / "launcher_plugin.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "launcher_plugin", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that names the example as its launcher."""
    info = tmp_path / "somebodys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[callgate.launchers]\ndocker = launcher_plugin:DockerLauncher\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


async def test_without_a_name_it_is_the_built_in_one() -> None:
    assert isinstance(find_launcher(), LocalLauncher)


@pytest.mark.usefixtures("installed")
async def test_a_launcher_is_found_by_its_entry_point(example: Any) -> None:
    assert isinstance(find_launcher("docker"), example.DockerLauncher)


@pytest.mark.usefixtures("installed")
def test_a_name_that_nobody_has_is_answered_with_those_that_exist() -> None:
    with pytest.raises(LookupError, match="docker, local"):
        find_launcher("kubernetes")


SPEC = LaunchSpec(
    "web",
    ("/bin/echo", "hello"),
    level="strict",
    contained=True,
    limits=ResourceLimits(memory_bytes=1 << 20, cpu_millicores=500, pids=8),
    mounts=(MountSpec("/srv", read_only=False),),
    env=EnvSpec(pass_all=False, secret=("KEY",)),
)


async def test_the_example_turns_limits_into_options(example: Any, tmp_path: Path) -> None:
    launcher = example.DockerLauncher()
    run = await launcher.launch(SPEC, run_id="1")
    os.close(run.stdin)
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await asyncio.gather(read_all(run.stdout), read_all(run.stderr))
        stopped = await run.wait()
    await launcher.aclose()

    told = (tmp_path / "log").read_text().split()
    assert (out, stopped.reason, stopped.exit_code) == ("hello\n", "exited", 0)
    assert told[:3] == ["run", "--name", "callgate-1"]
    assert {
        *("--network=none", "--read-only", "--memory=1048576", "--memory-swap=1048576"),
        *("--cpus=0.5", "--pids-limit=8", "--volume=/srv:/srv:ro", "--env=KEY"),
    } <= set(told)


async def test_the_example_ends_the_container_with_the_client(example: Any, tmp_path: Path) -> None:
    launcher = example.DockerLauncher()
    sleeping = LaunchSpec("web", ("/bin/sleep", "600"))
    run = await launcher.launch(sleeping, run_id="2")

    stopped = await run.stop("stop_requested")

    for fd in (run.stdin, run.stdout, run.stderr):
        os.close(fd)
    await launcher.aclose()
    assert stopped.reason == "stop_requested"
    assert (tmp_path / "log").read_text().splitlines()[-1] == "rm --force callgate-2"


@pytest.mark.parametrize(
    ("asked", "gap"),
    [
        ({"limits": ResourceLimits(disk_bytes=1)}, "disk_bytes"),
        ({"protocol": "runtime"}, "protocol"),
        ({"terminal": True}, "terminal"),
    ],
)
async def test_the_example_refuses_what_it_cannot_hold(
    example: Any, asked: dict[str, Any], gap: str
) -> None:
    launcher = example.DockerLauncher()

    with pytest.raises(LaunchRefused) as refused:
        await launcher.launch(LaunchSpec("web", ("x",), **asked), run_id="3")

    assert refused.value.gaps.keys() == {gap}


async def test_a_launcher_that_fails_to_close_does_not_spare_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Closing:
        def __init__(self, name: str) -> None:
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            raise OSError(self.name)

    monkeypatch.setattr("callgate.launcher.plugins.find_launcher", Closing)
    launchers = Launchers()
    for name in ("one", "other"):
        launchers.named(LaunchSpec("web", ("x",), launcher=name))

    with pytest.raises(OSError, match=r"one|other"):
        await launchers.aclose()

    assert sorted(closed) == ["one", "other"]
