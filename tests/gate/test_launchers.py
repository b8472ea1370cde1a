"""Another package's launcher behind the commands, found by its real entry point."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from callgate.gate.supervisor import Supervisor
from callgate.launcher.protocol import LaunchRefused
from callgate.model import LaunchSpec
from tests.gate.helpers import (
    FOREVER_S,
    OPEN,
    REFERENCE,
    ROOT,
    Gate,
    environment,
    tool,
    until,
    words,
)
from tests.launcher.test_plugins import ENGINE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

BY_DOCKER = OPEN.replace("web: {}", "web: {launcher: docker}")
RESTARTED = 'restart: {on: always, backoff: "0s..0s"}'


@pytest.fixture
def plugins(tmp_path: Path) -> dict[str, str]:
    """Variables with which callgate finds a package that has the example, and a broken one.

    The example's engine runs the command without a container and writes down what it was told.
    """
    site = tmp_path / "site"
    info = site / "somebodys-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "launcher_plugin.py", site)
    (site / "broken_plugin.py").write_text("raise RuntimeError('an engine of another time')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[callgate.launchers]\n"
        "docker = launcher_plugin:DockerLauncher\n"
        "broken = broken_plugin:Launcher\n"
    )
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "CALLGATE_ENGINE": str(engine),
        "CALLGATE_IMAGE": "an-image",
        "ENGINE_LOG": str(tmp_path / "engine.log"),
    }


def told(tmp_path: Path) -> list[str]:
    """The commands that the engine was given."""
    log = tmp_path / "engine.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[0] for line in lines]


def callgate(
    tmp_path: Path, plugins: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "callgate", *words],
        env=environment(tmp_path) | plugins,
        input="",
        capture_output=True,
        text=True,
        timeout=FOREVER_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (BY_DOCKER, ()),
        (BY_DOCKER.replace("docker", "local"), ("--launcher", "docker")),
        (OPEN.replace("defaults: {", "defaults: {launcher: docker, "), ()),
        (None, ("--launcher", "docker")),
    ],
    ids=["by the policy", "the command line is stronger", "by the defaults", "without a policy"],
)
def test_a_gate_starts_its_agent_with_the_launcher_that_is_named(
    tmp_path: Path, plugins: dict[str, str], policy: str | None, options: tuple[str, ...]
) -> None:
    with Gate(tmp_path, REFERENCE, policy, *options, env=plugins) as gate:
        gate.shake_hands()
        answer = gate.ask(tool(1, "hello_world"))
        assert gate.ends() == 0

    assert "hello" in words(answer)
    assert told(tmp_path)[0] == "run"
    assert "started by launcher docker" in gate.stderr


def test_without_a_name_no_plugin_is_asked(tmp_path: Path, plugins: dict[str, str]) -> None:
    with Gate(tmp_path, REFERENCE, OPEN, env=plugins) as gate:
        gate.shake_hands()
        assert gate.ends() == 0

    assert told(tmp_path) == []


@pytest.mark.parametrize("policy", [OPEN.replace("web: {}", "web: {launcher: dockr}"), None])
def test_a_launcher_that_nobody_has_is_refused_before_anything_is_launched(
    tmp_path: Path, plugins: dict[str, str], policy: str | None
) -> None:
    options = () if policy else ("--launcher", "dockr")
    started = tmp_path / "started"
    with Gate(tmp_path, ["touch", str(started)], policy, *options, env=plugins) as gate:
        assert gate.wait() == 125

    assert "no launcher 'dockr' is installed; there are: broken, docker, local" in gate.stderr
    assert not started.exists()
    assert not (tmp_path / "audit").exists()


def test_a_launcher_that_cannot_be_loaded_is_refused_with_the_reason(
    tmp_path: Path, plugins: dict[str, str]
) -> None:
    with Gate(tmp_path, REFERENCE, OPEN, "--launcher", "broken", env=plugins) as gate:
        assert gate.wait() == 125

    assert "'broken' cannot be used: RuntimeError: an engine of another time" in gate.stderr
    assert "Traceback" not in gate.stderr


def test_what_a_plugin_cannot_hold_is_refused(tmp_path: Path, plugins: dict[str, str]) -> None:
    contained = "web: {launcher: docker, containment: {files: 100}}"
    with Gate(tmp_path, REFERENCE, OPEN.replace("web: {}", contained), env=plugins) as gate:
        assert gate.wait() == 125

    assert "files: this launcher does not hold it" in gate.stderr


def test_a_reload_that_names_an_unknown_launcher_changes_nothing(
    tmp_path: Path, plugins: dict[str, str]
) -> None:
    with Gate(tmp_path, REFERENCE, OPEN, env=plugins) as gate:
        gate.shake_hands()
        changed = tmp_path / "changed.yaml"
        changed.write_text(OPEN.replace("web: {}", "web: {launcher: dockr}"))
        changed.replace(gate.policy)
        until(lambda: "the policy stays as it was" in gate.stderr or None)
        assert "hello" in words(gate.ask(tool(1, "hello_world")))
        assert gate.ends() == 0
        assert gate.events("policy.") == ["loaded", "reload_failed"]

    assert "there are: broken, docker, local" in gate.stderr


def test_a_reloaded_launcher_starts_the_next_run(tmp_path: Path, plugins: dict[str, str]) -> None:
    local = OPEN.replace("web: {}", f"web: {{{RESTARTED}}}")
    with Gate(tmp_path, REFERENCE, local, env=plugins) as gate:
        gate.shake_hands()
        gate.policy.write_text(local.replace("{restart", "{launcher: docker, restart"))
        until(lambda: "is in force" in gate.stderr or None)
        assert told(tmp_path) == []

        gate.kill_agent()

        until(lambda: told(tmp_path) == ["run"])
        assert "hello" in words(gate.ask(tool(1, "hello_world")))
        assert gate.ends() == 0


class Paused:
    """A run that is out of memory, and whether it was given up."""

    state = "paused"
    discarded = False

    async def discard(self) -> None:
        self.discarded = True


class Remembering:
    """A launcher that only remembers what it was asked to resume, and refuses."""

    def __init__(self) -> None:
        self.resumed: list[object] = []

    async def launch(self, spec: LaunchSpec, *, resume: object = None, **_: object) -> Any:
        self.resumed.append(resume)
        raise LaunchRefused(agent=spec.agent)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("launcher", ["local", "docker"])
async def test_what_another_launcher_has_paused_is_given_up(launcher: str) -> None:
    asked, paused = Remembering(), Paused()
    spec = LaunchSpec("web", ("x",))
    unused = cast("Any", None)
    supervisor = Supervisor(unused, asked, spec, stderr=unused, secrets=(), say=unused)
    supervisor.use(LaunchSpec("web", ("x",), launcher=launcher), ())

    with pytest.raises(LaunchRefused):
        await supervisor._launch(cast("Any", paused))  # whole, it needs a process

    same = launcher == "local"
    assert asked.resumed == [paused if same else None]
    assert paused.discarded is not same


def test_exec_runs_a_command_with_the_launcher_that_is_named(
    tmp_path: Path, plugins: dict[str, str]
) -> None:
    done = callgate(
        tmp_path, plugins, "exec", "--json", "--launcher", "docker", "--", "echo", "hello"
    )

    answer = json.loads(done.stdout)
    assert (done.returncode, answer["stdout"]) == (0, "hello\n")
    assert answer["effective"]["memory"] == {
        "status": "enforced",
        "reason": plugins["CALLGATE_ENGINE"],
    }
    assert told(tmp_path) == ["run"]


def test_exec_takes_the_launcher_from_a_policy(tmp_path: Path, plugins: dict[str, str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(BY_DOCKER)

    done = callgate(tmp_path, plugins, "exec", "--policy", str(policy), "--", "echo", "hello")

    assert done.returncode == 0
    assert told(tmp_path) == ["run"]


def test_exec_with_a_launcher_that_nobody_has_is_125(
    tmp_path: Path, plugins: dict[str, str]
) -> None:
    done = callgate(
        tmp_path, plugins, "exec", "--json", "--launcher", "dockr", "--", "echo", "hello"
    )

    answer = json.loads(done.stdout)
    assert (done.returncode, answer["error_class"]) == (125, "CAPABILITY_DENIED")
    assert "there are: broken, docker, local" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_warns_of_a_launcher_that_is_not_installed_here(
    tmp_path: Path, plugins: dict[str, str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefaults: {launcher: docker}\nagents:\n  web: {launcher: dockr}\n"
    )

    done = callgate(tmp_path, plugins, "check", str(policy))

    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line == (
        f'{policy}:4:19: agents.web.launcher: found "dockr", which is not installed here, '
        "expected broken or docker or local [warning]"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("docker", "'docker' shows no plan of what it will do"),
        ("dockr", "there are: broken, docker, local"),
    ],
)
def test_a_plan_is_never_shown_for_another_launcher_than_the_agents(
    tmp_path: Path, plugins: dict[str, str], name: str, said: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\nagents: {{web: {{command: [echo], launcher: {name}}}}}\n")

    done = callgate(tmp_path, plugins, "explain", str(policy), "--agent", "web", "--plan")

    assert done.returncode == 1
    assert said in done.stderr
