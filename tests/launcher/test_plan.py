"""What a launch would do, decided without doing it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callgate.launcher.doctor import _weaker
from callgate.launcher.plan import NOT_ASKED, LaunchPlan, Refusal, plan
from callgate.launcher.plan.capabilities import (
    UID_RANGES,
    Capability,
    Cgroups,
    Command,
    Host,
    mapped_range,
)
from callgate.launcher.plan.launch_plan import Drop, WorkspacePlan
from callgate.launcher.protocol import Effect, LaunchRefused, gaps_text
from callgate.model import EnvSpec, LaunchSpec, MountSpec, ResourceLimits

MIB = 1024 * 1024
YES = Capability(True)
ABLE = Host(
    rlimits=("RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_FSIZE"),
    cgroups=Cgroups(v2="/sys/fs/cgroup/own", v2_controllers=("memory", "cpu", "pids")),
    bwrap=YES,
    tmpfs=YES,
    seccomp=YES,
    landlock_abi=6,
    root_links={"/bin": "usr/bin"},
    root_paths=("/usr", "/etc/resolv.conf", "/etc/ssl"),
)
"""A host that has everything."""
POOR = Host(rlimits=ABLE.rlimits, cgroups=Cgroups(reason="not delegated"))
"""A host that has processes and nothing else."""
PROGRAM = Command("/usr/bin/agent")
CONTAINED = LaunchSpec("web", ("agent", "--fast"), contained=True, env=EnvSpec(pass_all=False))


def changed(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


def planned(spec: LaunchSpec, host: Host = ABLE, command: Command = PROGRAM) -> LaunchPlan:
    decided = plan(spec, host, command)
    assert isinstance(decided, LaunchPlan)
    return decided


def gaps(spec: LaunchSpec, host: Host) -> dict[str, str]:
    decided = plan(spec, host, PROGRAM)
    assert isinstance(decided, Refusal)
    return decided.gaps


def limited(**limits: Any) -> LaunchSpec:
    return msgspec.structs.replace(CONTAINED, limits=ResourceLimits(**limits))


def test_without_containment_nothing_is_put_around_an_agent() -> None:
    decided = planned(LaunchSpec("web", ("agent", "--fast")))

    assert decided.argv == ("/usr/bin/agent", "--fast")
    assert (decided.cgroup, decided.workspace, decided.sandbox) == (None, None, None)
    assert (decided.rlimits, decided.drop, decided.no_new_privs) == ((), None, False)
    held = {name for name, effect in decided.effective.items() if effect.status == "enforced"}
    assert held == {"tree_kill"}


@pytest.mark.parametrize("level", ["strict", "standard", "network"])
def test_a_level_without_its_means_is_refused_with_all_that_is_missing(level: Any) -> None:
    missing = gaps(changed(CONTAINED, level=level), POOR)

    wanted = {"namespaces", "filesystem", "seccomp", "landlock"}
    wanted |= set() if level == "network" else {"network"}
    assert missing.keys() == wanted


def test_a_refusal_can_be_allowed_and_then_the_plan_carries_its_gaps() -> None:
    decided = planned(changed(CONTAINED, level="standard", allow_degraded=True), POOR)

    assert decided.sandbox is None
    assert decided.gaps.keys() >= {"namespaces", "seccomp"}


@pytest.mark.parametrize(
    ("limit", "feature"), [("memory_bytes", "memory"), ("pids", "pids"), ("disk_bytes", "disk")]
)
def test_a_limit_that_is_only_watched_is_degraded_and_not_refused(limit: str, feature: str) -> None:
    decided = planned(limited(**{limit: 64 * MIB}), POOR)

    assert decided.effective[feature].status == "degraded"
    assert feature not in decided.kernel
    assert decided.gaps == {}


def test_at_level_strict_a_limit_that_is_only_watched_is_a_gap() -> None:
    spec = changed(limited(memory_bytes=MIB), level="strict")

    assert gaps(spec, changed(ABLE, cgroups=POOR.cgroups)).keys() == {"memory"}


def test_a_share_of_processors_that_nothing_holds_is_refused_if_it_was_written() -> None:
    assert gaps(limited(cpu_millicores=500), POOR) == {"cpu": "not delegated"}


def test_a_share_of_processors_that_nobody_wrote_is_told_and_not_refused() -> None:
    spec = changed(limited(cpu_millicores=1000), assumed=("cpu",))

    decided = planned(spec, POOR)

    assert decided.effective["cpu"].status == "absent"
    assert decided.effective["cpu"].reason == "not delegated"


def test_limits_become_files_of_a_v2_group() -> None:
    decided = planned(limited(memory_bytes=64 * MIB, cpu_millicores=250, pids=16))

    assert decided.cgroup is not None
    assert [(each.file, each.value) for each in decided.cgroup.settings] == [
        ("memory.max", str(64 * MIB)),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("cpu.max", "25000 100000"),
        ("pids.max", "16"),
    ]
    assert decided.kernel == {"memory", "pids"}


def test_limits_become_files_of_v1_groups_where_v2_has_no_controllers() -> None:
    v1 = {name: f"/sys/fs/cgroup/{name}" for name in ("memory", "cpu", "pids", "cpuacct")}
    host = changed(ABLE, cgroups=Cgroups(v2="/sys/fs/cgroup/unified", v1=v1))

    decided = planned(limited(memory_bytes=64 * MIB, cpu_millicores=5, pids=16), host)

    assert decided.cgroup is not None
    assert decided.cgroup.v2
    assert decided.cgroup.v1 == ("memory", "cpu", "cpuacct", "pids")
    assert [(each.file, each.value) for each in decided.cgroup.settings] == [
        ("memory.limit_in_bytes", str(64 * MIB)),
        ("memory.memsw.limit_in_bytes", str(64 * MIB)),
        ("cpu.cfs_period_us", "1000000"),
        ("cpu.cfs_quota_us", "5000"),
        ("pids.max", "16"),
    ]


def test_without_v2_a_group_is_killed_by_the_freezer() -> None:
    host = changed(ABLE, cgroups=Cgroups(v1={"freezer": "/sys/fs/cgroup/freezer"}))

    decided = planned(limited(), host)

    assert decided.cgroup is not None
    assert (decided.cgroup.v2, decided.cgroup.v1) == (False, ("freezer",))


def test_what_bwrap_needs_is_added_to_the_processes_of_a_sandbox() -> None:
    spec = changed(limited(pids=16), level="standard")

    decided = planned(spec)

    assert decided.cgroup is not None
    assert decided.cgroup.settings[-1].value == "18"


def test_a_soft_limit_of_memory_is_v2s_high_mark_and_nothing_harder() -> None:
    decided = planned(limited(memory_high_bytes=64 * MIB))

    assert decided.cgroup is not None
    assert [(each.file, each.value) for each in decided.cgroup.settings] == [
        ("memory.high", str(64 * MIB))
    ]
    assert decided.effective["memory_high"].status == "enforced"


@pytest.mark.parametrize("level", ["privileged", "strict"])
def test_a_soft_limit_that_nothing_holds_is_told_and_refuses_nobody(level: Any) -> None:
    v1 = changed(ABLE, cgroups=Cgroups(v1={"memory": "/sys/fs/cgroup/memory"}))
    spec = changed(limited(memory_high_bytes=64 * MIB), level=level)

    effect = planned(spec, v1).effective["memory_high"]

    assert (effect.status, bool(effect.reason)) == ("absent", True)


@pytest.mark.parametrize(
    ("feature", "spec"),
    [
        ("io_read", limited(io_read_bytes_per_s=MIB)),
        ("io_write", limited(io_write_bytes_per_s=MIB)),
        ("cgroup_parent", changed(limited(pids=9), cgroup_parent="/sys/fs/cgroup/agents")),
    ],
)
def test_what_this_launcher_cannot_do_is_refused_if_it_was_written(
    feature: str, spec: LaunchSpec
) -> None:
    assert set(gaps(spec, ABLE)) == {feature}


@pytest.mark.parametrize(
    ("groups", "files", "write"),
    [
        (
            Cgroups(v2="/own", v2_controllers=("io",), disks=("8:0", "8:16")),
            [("io.max", "8:0 rbps=1 wbps=2"), ("io.max", "8:16 rbps=1 wbps=2")],
            "enforced",
        ),
        (
            Cgroups(v1={"io": "/v1"}, disks=("8:0",)),
            [
                ("blkio.throttle.read_bps_device", "8:0 1"),
                ("blkio.throttle.write_bps_device", "8:0 2"),
            ],
            "degraded",
        ),
    ],
)
def test_throughput_becomes_a_line_for_each_disk(
    groups: Cgroups, files: list[tuple[str, str]], write: str
) -> None:
    spec = limited(io_read_bytes_per_s=1, io_write_bytes_per_s=2)

    decided = planned(spec, changed(POOR, cgroups=groups))

    assert decided.cgroup is not None
    assert [(each.file, each.value) for each in decided.cgroup.settings] == files
    assert decided.effective["io_read"].status == "enforced"
    assert decided.effective["io_write"].status == write


@pytest.mark.parametrize(
    ("level", "host", "status"),
    [
        ("standard", ABLE, "enforced"),
        ("privileged", ABLE, "absent"),
        ("standard", changed(ABLE, landlock_abi=0), "absent"),
    ],
)
def test_a_list_of_programs_is_held_by_landlock_and_else_refused(
    level: Any, host: Host, status: str
) -> None:
    listed = changed(PROGRAM, programs=("/usr/bin/agent", "/usr/bin/git"))
    spec = changed(CONTAINED, level=level, programs=("git",), allow_degraded=True)

    decided = planned(spec, host, listed)

    assert decided.effective["exec"].status == status
    assert ("exec" in decided.gaps) == (status == "absent")
    if status == "enforced":
        assert decided.sandbox is not None
        assert decided.sandbox.landlock is not None
        assert decided.sandbox.landlock.programs == listed.programs
        assert "memfd_create" in decided.sandbox.refused


def test_runs_get_their_groups_in_the_one_that_the_policy_names() -> None:
    groups = changed(ABLE.cgroups, v2="/sys/fs/cgroup/agents")
    spec = changed(limited(pids=9), cgroup_parent="/sys/fs/cgroup/agents/")

    decided = planned(spec, changed(ABLE, cgroups=groups))

    assert decided.cgroup is not None
    assert decided.cgroup.parent == "/sys/fs/cgroup/agents"
    assert decided.effective["cgroup_parent"].status == "enforced"


def test_one_way_of_throughput_leaves_the_other_alone() -> None:
    groups = Cgroups(v2="/own", v2_controllers=("io",), disks=("8:0",))

    decided = planned(limited(io_write_bytes_per_s=2), changed(POOR, cgroups=groups))

    assert decided.cgroup is not None
    assert [each.value for each in decided.cgroup.settings] == ["8:0 wbps=2"]
    assert decided.effective["io_read"].reason == NOT_ASKED


@pytest.mark.parametrize(("level", "status"), [("standard", "enforced"), ("privileged", "absent")])
def test_descriptors_are_bounded_in_a_sandbox_also_if_nobody_wrote_it(
    level: Any, status: str
) -> None:
    decided = planned(changed(CONTAINED, level=level))

    assert decided.effective["open_files"].status == status


def test_rlimits_are_those_that_were_asked_for() -> None:
    spec = limited(open_files=32, cpu_time_ns=1_500_000_000, core_bytes=0)

    assert planned(spec).rlimits == (("RLIMIT_NOFILE", 32), ("RLIMIT_CPU", 2), ("RLIMIT_CORE", 0))


def test_in_a_sandbox_the_address_space_is_limited_last() -> None:
    spec = changed(limited(address_space_bytes=MIB, open_files=9), level="standard")

    decided = planned(spec)

    assert decided.rlimits == (("RLIMIT_NOFILE", 9),)
    assert decided.late_rlimits == (("RLIMIT_AS", MIB),)


def test_a_system_without_an_rlimit_refuses_it() -> None:
    assert gaps(limited(open_files=9), changed(ABLE, rlimits=(), platform="win32")) == {
        "open_files": "win32 has no RLIMIT_NOFILE"
    }


@pytest.mark.parametrize(
    ("memory", "disk", "tmpfs"),
    [(None, 64 * MIB, True), (128 * MIB, 64 * MIB, True), (127 * MIB, 64 * MIB, False)],
)
def test_a_workspace_is_in_memory_only_if_it_leaves_half_of_it(
    memory: int | None, disk: int, tmpfs: Any
) -> None:
    spec = changed(limited(memory_bytes=memory, disk_bytes=disk), level="standard")

    decided = planned(spec)

    assert decided.workspace is not None
    assert decided.workspace.tmpfs is tmpfs
    assert ("disk" in decided.kernel) is tmpfs


def test_a_disk_that_nobody_wrote_is_lowered_to_half_of_the_memory_and_held() -> None:
    usual = changed(limited(memory_bytes=512 * MIB, disk_bytes=1024 * MIB), level="standard")

    lowered = planned(changed(usual, assumed=("memory", "disk")))
    written = planned(changed(usual, assumed=("memory",)))
    no_group = planned(changed(usual, assumed=("memory", "disk")), changed(ABLE, cgroups=Cgroups()))

    assert lowered.workspace == WorkspacePlan(True, 256 * MIB, None)
    assert lowered.effective["disk"] == Effect("enforced", "256 MiB, half of its memory")
    assert lowered.limits(usual.limits).disk_bytes == 256 * MIB
    for other in (written, no_group):
        assert other.workspace == WorkspacePlan(False, 1024 * MIB, None)
        assert other.effective["disk"].status == "degraded"
        assert "half of its memory" in other.effective["disk"].reason


def test_more_memory_does_not_take_the_default_workspace_from_a_paused_run() -> None:
    usual = changed(limited(memory_bytes=64 * MIB, disk_bytes=1024 * MIB), level="standard")
    usual = changed(usual, assumed=("disk",))
    before = planned(usual)
    more = planned(changed(usual, limits=changed(usual.limits, memory_bytes=256 * MIB)))

    kept = more.in_workspace_of(before)

    assert kept.workspace == before.workspace == WorkspacePlan(True, 32 * MIB, None)
    assert kept.effective["disk"] == before.effective["disk"]
    assert kept.cgroup == more.cgroup != before.cgroup
    written = planned(changed(usual, limits=ResourceLimits(memory_bytes=MIB, disk_bytes=1024)))
    assert written.in_workspace_of(before) == written


def test_no_file_may_be_longer_than_a_workspace_that_is_only_watched() -> None:
    watched = limited(disk_bytes=MIB)
    floor = ("RLIMIT_FSIZE", MIB)

    assert planned(watched).rlimits == (floor,)
    assert planned(changed(watched, assumed=("disk",))).rlimits == ()
    boxed = changed(watched, level="standard", limits=changed(watched.limits, memory_bytes=MIB))
    assert planned(boxed).late_rlimits == (floor,)
    assert planned(changed(boxed, limits=watched.limits)).late_rlimits == ()


def test_root_becomes_one_of_many_in_a_sandbox_only() -> None:
    host = changed(ABLE, uid=0, uids=(70_000, 10))

    assert planned(changed(CONTAINED, level="standard"), host).drop == Drop((70_000, 10))
    assert planned(CONTAINED, host).drop is None
    assert planned(changed(CONTAINED, level="standard")).drop is None


@pytest.mark.parametrize("level", ["strict", "standard"])
def test_what_writes_to_a_mount_is_the_same_user_each_time_and_told_so(level: Any) -> None:
    host = changed(ABLE, uid=0)
    mounts = (MountSpec("/srv/a", read_only=False),)

    decided = planned(changed(CONTAINED, level=level, mounts=mounts), host)

    assert decided.drop is not None
    assert decided.drop.shared is (level == "standard")
    assert ("together" in decided.effective["uid_drop"].reason) is decided.drop.shared


def test_a_user_namespace_without_uids_for_runs_is_a_gap() -> None:
    host = changed(ABLE, uid=0, uids=None)

    assert gaps(changed(CONTAINED, level="standard"), host).keys() == {"uid_drop"}


@pytest.mark.parametrize(
    ("uid_map", "found"),
    [
        ("         0          0 4294967295\n", UID_RANGES[0]),
        ("0 1000 1\n1 100000 65535\n", UID_RANGES[1]),
        ("0 1000 1\n", None),
    ],
)
def test_uids_of_runs_are_those_that_are_mapped_here(uid_map: str, found: Any) -> None:
    assert mapped_range(uid_map) == found


def test_without_a_sandbox_root_stays_root_for_a_program_that_nobody_else_can_reach() -> None:
    host = changed(POOR, uid=0)
    spec = changed(CONTAINED, level="standard", allow_degraded=True)
    hidden = Command("/hidden/agent", open=False)

    assert planned(spec, host).drop == Drop(UID_RANGES[0])
    assert planned(spec, host, hidden).drop is None
    assert planned(spec, host, hidden).effective["uid_drop"].status == "absent"


@pytest.mark.parametrize(
    ("abi", "refused"), [(2, ("unix", "listen")), (4, ("unix",)), (5, ("unix",)), (6, ())]
)
def test_at_level_network_the_filter_refuses_what_an_older_landlock_does_not_know(
    abi: int, refused: tuple[str, ...]
) -> None:
    decided = planned(changed(CONTAINED, level="network"), changed(ABLE, landlock_abi=abi))

    assert decided.sandbox is not None
    assert decided.sandbox.refused == refused
    assert decided.effective["landlock"].status == "enforced"
    assert decided.effective["landlock"].reason.startswith("landlock version") == bool(refused)


def test_sockets_of_a_mount_are_a_gap_where_the_filter_must_refuse_them() -> None:
    mounts = (MountSpec("/run/service", sockets=True),)
    spec = changed(CONTAINED, level="network", mounts=mounts)

    assert gaps(spec, changed(ABLE, landlock_abi=5)).keys() == {"landlock"}
    assert planned(spec).gaps == {}


@pytest.mark.parametrize("level", ["strict", "standard", "network"])
def test_no_level_of_a_sandbox_is_had_without_any_landlock(level: Any) -> None:
    assert gaps(changed(CONTAINED, level=level), changed(ABLE, landlock_abi=0)).keys() == {
        "landlock"
    }


def test_level_standard_needs_a_landlock_that_knows_files() -> None:
    decided = planned(changed(CONTAINED, level="standard"), changed(ABLE, landlock_abi=1))

    assert decided.effective["landlock"].status == "enforced"


def test_levels_differ_in_network_and_landlock_and_root() -> None:
    boxes = {}
    for level in ("strict", "standard", "network"):
        box = planned(changed(CONTAINED, level=level)).sandbox
        assert box is not None
        assert box.landlock is not None
        shown = {bind.path for bind in box.binds}
        boxes[level] = (box.network, box.landlock.tcp, "/etc/resolv.conf" in shown)

    assert boxes == {
        "strict": (False, "none", False),
        "standard": (False, "free", False),
        "network": (True, "connect", True),
    }


@pytest.mark.parametrize("inside", ["/srv/a", "/srv/a/b"])
def test_a_mount_inside_of_what_an_agent_writes_to_needs_a_stage(inside: str) -> None:
    """Where callgate cannot mount, bwrap would follow what a run has left there."""
    mounts = (MountSpec("/srv", read_only=False), MountSpec(inside))
    spec = changed(CONTAINED, level="standard", mounts=mounts)
    bare = changed(ABLE, tmpfs=Capability(False, "no user namespace"))

    assert inside in gaps(spec, bare)["filesystem"]
    assert planned(spec).sandbox is not None


def test_a_mount_beside_what_an_agent_writes_to_needs_none() -> None:
    mounts = (MountSpec("/srv", read_only=False), MountSpec("/srv2"))
    spec = changed(CONTAINED, level="standard", mounts=mounts)

    assert planned(spec, changed(ABLE, tmpfs=Capability(False, "no"))).sandbox is not None


def test_a_doubt_is_refused_even_where_gaps_are_allowed() -> None:
    doubtful = changed(PROGRAM, doubts=(("/opt/python", "/srv/pyvenv.cfg is in /srv"),))
    spec = changed(CONTAINED, level="standard", allow_degraded=True)

    decided = plan(spec, ABLE, doubtful)

    assert isinstance(decided, Refusal)
    assert "/srv/pyvenv.cfg" in decided.gaps["command"]


@pytest.mark.parametrize("shown", ["/usr/bin/python3", "/bin/sh", "/srv/x"])
def test_a_doubt_about_what_is_shown_anyway_is_none(shown: str) -> None:
    doubtful = changed(PROGRAM, doubts=((shown, "a run may have written it"),))
    spec = changed(CONTAINED, level="standard", mounts=(MountSpec("/srv"),))

    assert isinstance(plan(spec, ABLE, doubtful), LaunchPlan)


def test_sockets_that_come_later_are_told_where_the_kernel_does_not_refuse_them() -> None:
    spec = changed(CONTAINED, level="standard", mounts=(MountSpec("/srv"),))

    assert "after the launch" in planned(spec).effective["filesystem"].reason
    assert planned(spec, changed(ABLE, landlock_abi=9)).effective["filesystem"].reason == ""


def test_at_level_strict_every_mount_is_read_only() -> None:
    mounts = (MountSpec("/srv/a", read_only=False), MountSpec("/srv/b"))
    strict = planned(changed(CONTAINED, level="strict", mounts=mounts)).sandbox
    standard = planned(changed(CONTAINED, level="standard", mounts=mounts)).sandbox
    assert strict is not None
    assert standard is not None

    assert {bind.path for bind in strict.binds if bind.writable} == set()
    assert {bind.path for bind in standard.binds if bind.writable} == {"/srv/a"}


@pytest.mark.parametrize("path", ["/", "relative"])
def test_a_mount_that_is_no_place_of_its_own_is_refused(path: str) -> None:
    spec = changed(CONTAINED, level="standard", mounts=(MountSpec(path),))

    assert gaps(spec, ABLE).keys() == {"filesystem"}


@pytest.mark.parametrize(
    ("level", "status"),
    [
        *(("strict", "enforced"), ("standard", "degraded")),
        *(("network", "degraded"), ("privileged", "degraded")),
    ],
)
def test_connections_are_watched_where_a_process_can_have_one(level: Any, status: str) -> None:
    decided = planned(changed(limited(connections=5), level=level))

    assert decided.effective["connections"].status == status
    assert ("connections" in decided.kernel) == (status == "enforced")


def test_a_plan_names_variables_and_never_holds_a_value() -> None:
    env = EnvSpec(pass_all=False, names=("NAMED",), secret=("KEY",))

    decided = planned(changed(CONTAINED, level="strict", env=env))

    assert decided.environment == ("NAMED", "KEY")


def test_what_one_thing_is_missing_for_is_said_once() -> None:
    gaps = {"namespaces": "no bwrap", "memory": "no cgroup", "seccomp": "no bwrap"}

    assert gaps_text(gaps) == "namespaces, seccomp: no bwrap; memory: no cgroup"
    assert str(LaunchRefused(agent="web", gaps=gaps)).endswith(gaps_text(gaps))


def test_a_level_that_is_had_says_what_comes_with_it_and_does_not_hold() -> None:
    effective = {
        "memory": Effect("degraded", "watched"),
        "cpu": Effect("absent", "no cgroup"),
        "files": Effect("absent", NOT_ASKED),
        "seccomp": Effect("enforced"),
    }

    assert _weaker(effective) == "watched only: memory; not held: cpu"
