"""Which variables an agent gets."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.launcher.plan import environment
from callgate.model import EnvSpec, LaunchSpec

HOST = {"PATH": "/opt/bin:/usr/bin", "HOME": "/home/alice", "LANG": "C.UTF-8", "KEY": "s", "X": "1"}
NAMED = EnvSpec(pass_all=False, names=("X", "MISSING"), secret=("KEY",))


def built(level: Any, env: EnvSpec, workspace: str | None = None) -> dict[str, str]:
    spec = LaunchSpec("a", ("x",), level=level, env=env)
    return environment.build(spec, HOST, workspace, "/srv/venv/bin/x")


def test_without_containment_everything_passes_but_what_is_withheld() -> None:
    env = built("privileged", EnvSpec(withheld=("KEY",)))

    assert env == {name: value for name, value in HOST.items() if name != "KEY"}


def test_what_is_withheld_passes_if_the_policy_names_it() -> None:
    env = EnvSpec(pass_all=False, names=("KEY",), withheld=("KEY",))

    assert built("strict", env)["KEY"] == "s"


def test_with_containment_only_names_pass_and_what_everybody_needs() -> None:
    assert built("privileged", NAMED) == HOST
    assert built("privileged", EnvSpec(pass_all=False)) == {
        name: HOST[name] for name in ("PATH", "HOME", "LANG")
    }


@pytest.mark.parametrize("level", ["standard", "network"])
def test_in_a_sandbox_paths_are_the_sandboxs_own(level: Any) -> None:
    assert built(level, NAMED, environment.WORKSPACE) == {
        "LANG": "C.UTF-8",
        "X": "1",
        "KEY": "s",
        "HOME": "/workspace",
        "TMPDIR": environment.TEMPORARY,
        "PATH": "/srv/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "CALLGATE_WORKSPACE": "/workspace",
    }


def test_at_level_strict_nothing_of_the_host_passes_by_itself() -> None:
    env = built("strict", EnvSpec(pass_all=False), environment.WORKSPACE)

    assert env.keys() == {"HOME", "TMPDIR", "PATH", "CALLGATE_WORKSPACE"}


def test_a_path_that_the_policy_names_is_the_hosts() -> None:
    env = EnvSpec(pass_all=False, names=("PATH",))

    assert built("standard", env, environment.WORKSPACE)["PATH"] == HOST["PATH"]


def test_a_sandbox_that_could_not_be_had_uses_a_workspace_elsewhere() -> None:
    env = built("standard", NAMED, "/runs/1/files")

    assert (env["HOME"], env["TMPDIR"]) == ("/runs/1/files", "/runs/1/files")


def test_a_token_of_a_callgate_that_started_us_does_not_pass() -> None:
    spec = LaunchSpec("a", ("x",))
    inherited = dict.fromkeys(("CALLGATE_SESSION_TOKEN", "CALLGATE_CHANNEL_FD"), "old")

    assert environment.build(spec, inherited, None, "/x") == {}
