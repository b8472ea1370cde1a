"""What a policy says of a process, as a launcher reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from callgate.model import LaunchSpec, MountSpec, ResourceLimits, RestartSpec
from callgate.policy import Policy, PolicyError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
SECOND = 1_000_000_000


def compiled(agent: str, more: str = "", base: str | Path = "/etc/callgate") -> LaunchSpec:
    """The spec of agent `web`, from the text of its entry."""
    text = f"version: 1\n{more}\nagents:\n  web: {{command: [web-agent, --fast], {agent}}}\n"
    return Policy.parse(text, base=base).launch_spec("web")


def test_without_containment_there_is_none() -> None:
    spec = compiled("")

    assert (spec.command, spec.level, spec.contained) == (
        ("web-agent", "--fast"),
        "privileged",
        False,
    )
    assert spec.limits == ResourceLimits()
    assert spec.env.pass_all


def test_containment_brings_the_seeds_limits_which_nobody_wrote() -> None:
    spec = compiled("containment: {level: standard, memory: 64Mi}")

    assert spec.limits == ResourceLimits(
        memory_bytes=64 * MIB, cpu_millicores=1000, pids=64, disk_bytes=1024 * MIB
    )
    assert set(spec.assumed) == {"cpu", "pids", "disk"}
    assert (spec.level, spec.contained, spec.env.pass_all) == ("standard", True, False)


def test_containment_without_a_level_is_about_limits_alone() -> None:
    spec = compiled("containment: {memory: 64Mi}")

    assert (spec.level, spec.contained) == ("privileged", True)


def test_unlimited_leaves_a_dial_alone() -> None:
    limits = compiled("containment: {memory: unlimited, cpu: unlimited}").limits

    assert (limits.memory_bytes, limits.cpu_millicores, limits.pids) == (None, None, 64)


def test_every_limit_has_its_dial() -> None:
    spec = compiled(
        "containment: {memory: 1Mi, cpu: 100m, pids: 2, disk: 3Mi, files: 4, open_files: 5,"
        " cpu_time: 6s, wall_time: 7s, address_space: 8Mi, core_size: 9Mi, connections: 10,"
        " io_read: 11Mi, io_write: 12Mi}"
    )

    assert spec.limits == ResourceLimits(
        memory_bytes=MIB,
        cpu_millicores=100,
        pids=2,
        disk_bytes=3 * MIB,
        files=4,
        open_files=5,
        cpu_time_ns=6 * SECOND,
        wall_time_ns=7 * SECOND,
        address_space_bytes=8 * MIB,
        core_bytes=9 * MIB,
        connections=10,
        io_read_bytes_per_s=11 * MIB,
        io_write_bytes_per_s=12 * MIB,
    )
    assert spec.assumed == ()


def test_the_programs_the_parent_group_and_the_kill_grace_are_handed_on() -> None:
    spec = compiled(
        "containment: {exec: [git, /usr/bin/env], cgroup_parent: /sys/fs/cgroup/x, kill_grace: 0s}"
    )

    assert (spec.programs, spec.cgroup_parent) == (("git", "/usr/bin/env"), "/sys/fs/cgroup/x")
    assert spec.kill_grace_ns == 0
    assert spec.contained


def test_nothing_said_of_programs_allows_all_and_an_empty_list_none() -> None:
    assert compiled("containment: {memory: 1Gi}").programs is None
    assert compiled("containment: {exec: []}").programs == ()


def test_no_core_dump_is_a_limit_of_zero() -> None:
    assert compiled("containment: {core_size: 0}").limits.core_bytes == 0


@pytest.mark.parametrize("path", ["agents", "/sys/fs/cgroup/../../etc", ""])
def test_a_parent_group_is_an_absolute_path_that_leads_nowhere_else(path: str) -> None:
    with pytest.raises(PolicyError):
        compiled(f"containment: {{cgroup_parent: '{path}'}}")


def test_a_limit_in_shadow_is_only_watched() -> None:
    spec = compiled("containment: {memory: {limit: 64Mi, mode: shadow}}")

    assert (spec.limits.memory_bytes, spec.shadow.memory_bytes) == (None, 64 * MIB)


def test_a_policy_that_is_only_tried_out_changes_nothing_that_an_agent_sees() -> None:
    spec = compiled("containment: {level: strict}", more="mode: shadow")

    assert (spec.level, spec.contained, spec.env.pass_all) == ("privileged", False, True)
    assert spec.shadow.memory_bytes == 512 * MIB


def test_mounts_are_relative_to_the_policy_file() -> None:
    spec = compiled("containment: {level: standard, mounts: [{path: repos}, {path: /srv}]}")

    assert spec.mounts == (
        MountSpec("/etc/callgate/repos", read_only=False),
        MountSpec("/srv", read_only=False),
    )


def test_names_of_variables_are_kept_apart_by_what_may_be_shown() -> None:
    spec = compiled("containment: {}, env: {pass: [PATH], secret: [KEY]}")

    assert (spec.env.names, spec.env.secret) == (("PATH",), ("KEY",))


def test_naming_variables_makes_an_allow_list_even_without_containment() -> None:
    assert not compiled("env: {pass: [PATH]}").env.pass_all
    assert compiled("env: {secret: [KEY]}").env.pass_all


def test_tokens_of_callers_are_withheld() -> None:
    spec = compiled("", more="callers: {bot: {token: env:BOT_TOKEN}}")

    assert spec.env.withheld == ("BOT_TOKEN",)


def test_a_restart_policy_is_compiled() -> None:
    assert compiled("").restart == RestartSpec("never")
    assert compiled("restart: {on: failure, max: 3, backoff: 2s..9s}").restart == RestartSpec(
        "failure", 3, 2 * SECOND, 9 * SECOND
    )


def test_the_protocol_and_the_interval_are_compiled() -> None:
    spec = compiled("protocol: runtime, containment: {monitor_interval: 250ms}")

    assert (spec.protocol, spec.monitor_interval_ns) == ("runtime", SECOND // 4)


def test_a_manifest_may_ask_for_less_and_its_connections_count(tmp_path: Path) -> None:
    manifest = '{"resources": {"memory": {"limit": "1Gi"}, "network": {"max_connections": 7}}}'
    (tmp_path / "agent.json").write_text(manifest)

    spec = compiled("manifest: agent.json, containment: {memory: 64Mi}", base=tmp_path)

    assert (spec.limits.memory_bytes, spec.limits.connections) == (64 * MIB, 7)


def test_another_command_can_be_given() -> None:
    policy = Policy.parse("version: 1\nagents: {web: {containment: {memory: 1Mi}}}")

    assert policy.launch_spec("web", ["npx", "server"]).command == ("npx", "server")
