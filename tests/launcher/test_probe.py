from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.launcher import cgroup, probe, probe_acts, probe_groups, seccomp, survey
from callgate.launcher.causes import Facts, no_namespaces
from callgate.launcher.host import DROP_ID, Cgroups, Host
from callgate.launcher.probe_acts import Act, Finding, act
from callgate.model import ResourceLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="probes Linux")

DROPPED = DROP_ID if os.geteuid() == 0 else None
MIB = 2**20


@pytest.fixture(scope="module")
def host() -> Host:
    return survey.with_groups(survey.survey())


def needs_group(host: Host, controller: str) -> None:
    if host.cgroups.holder(controller) is None:
        pytest.skip(f"no {controller} controller: {host.cgroups.reason}")


def needs_bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        pytest.skip("bwrap is not installed")
    if probe.sandbox(probe.facts(), DROPPED).status != "enforced":
        pytest.skip("bwrap does not work here")
    return path


@pytest.mark.parametrize(
    "find", [probe.rlimits, probe.tree_kill, probe.pidfd, probe.terminal], ids=lambda f: f.__name__
)
def test_what_every_linux_has_is_found(find: object) -> None:
    assert callable(find)
    assert find().status == "enforced"


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
def test_a_limit_that_held_is_enforced(host: Host, controller: str) -> None:
    needs_group(host, controller)

    finding = getattr(probe_groups, controller)(host)

    where = f"cgroup {host.cgroups.holder(controller)}"
    assert finding == Finding(controller, "enforced", where)


@pytest.mark.parametrize(
    ("controller", "limits"),
    [
        ("memory", ResourceLimits(memory_bytes=1024 * MIB)),
        ("pids", ResourceLimits(pids=1000)),
        ("cpu", ResourceLimits(cpu_millicores=900_000)),
    ],
)
def test_a_limit_that_did_not_hold_is_not_called_enforced(
    host: Host, controller: str, limits: ResourceLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_group(host, controller)
    monkeypatch.setattr(probe_groups, "GROUP_LIMITS", limits)

    finding = getattr(probe_groups, controller)(host)

    assert finding.status != "enforced"
    assert finding.why.startswith("the limit was set and did not hold")


def test_a_group_is_ended_with_whoever_left_its_session(host: Host) -> None:
    if host.cgroups.v2 is None and "freezer" not in host.cgroups.v1:
        pytest.skip(f"no groups: {host.cgroups.reason}")

    assert probe_groups.ended_at_once(host).status == "enforced"


def test_a_group_that_cannot_be_ended_is_not_called_enforced(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host.cgroups.v2 is None and "freezer" not in host.cgroups.v1:
        pytest.skip(f"no groups: {host.cgroups.reason}")
    monkeypatch.setattr(probe_groups, "PROBE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cgroup.Group, "kill", lambda _group: None)

    finding = probe_groups.ended_at_once(host)

    assert (finding.feature, finding.status) == ("cgroup", "degraded")
    assert left_behind(host) == []


def left_behind(host: Host) -> list[Path]:
    places = [host.cgroups.v2, *host.cgroups.v1.values()]
    return [path for place in places if place for path in Path(place).glob("callgate-probe-*")]


def test_no_group_is_left_behind(host: Host) -> None:
    for find in (probe_groups.memory, probe_groups.pids, probe_groups.ended_at_once):
        find(host)

    assert left_behind(host) == []


@pytest.mark.parametrize(
    ("controller", "status"), [("memory", "degraded"), ("pids", "degraded"), ("cpu", "absent")]
)
def test_without_a_controller_the_reason_and_the_way_out_are_told(
    controller: str, status: str
) -> None:
    bare = Host(uid=1000, cgroups=Cgroups(reason="nothing is mounted"))

    finding = getattr(probe_groups, controller)(bare)

    assert (finding.feature, finding.status) == (controller, status)
    assert finding.why.endswith("nothing is mounted")
    assert "Delegate=yes" in finding.fix


def test_without_groups_each_process_is_killed_by_itself() -> None:
    bare = Host(uid=0, cgroups=Cgroups(reason="nothing is mounted"))

    finding = probe_groups.ended_at_once(bare)

    assert finding.status == "degraded"
    assert "cgroup2" in finding.fix


def test_a_group_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    nowhere = Host(cgroups=Cgroups(v2=str(tmp_path / "gone"), v2_controllers=("memory",)))

    assert "gone" in probe_groups.memory(nowhere).why
    assert "gone" in probe_groups.ended_at_once(nowhere).why


def test_a_sandbox_is_one_that_differs_in_every_namespace() -> None:
    needs_bwrap()

    assert probe.sandbox(probe.facts(), DROPPED) == Finding("sandbox", "enforced", "bwrap")


def fake_bwrap(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.chmod(0o755)
    program = directory / "bwrap"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_bwrap_that_shares_our_namespaces_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path, 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"', monkeypatch)

    finding = probe.sandbox(Facts(), None)

    assert finding.status == "absent"
    assert "user, pid, mnt, net, ipc, uts, cgroup" in finding.why


def test_a_bwrap_that_is_refused_has_its_words_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path, "echo setting up uid map: Permission denied >&2; exit 1", monkeypatch)

    finding = probe.sandbox(Facts(apparmor_restricts=1), None)

    assert finding.why == (
        "AppArmor restricts user namespaces (Ubuntu 23.10 and later) "
        "(setting up uid map: Permission denied)"
    )
    assert "/etc/apparmor.d/bwrap" in finding.fix


def test_a_bwrap_that_is_not_there_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    finding = probe.sandbox(Facts(), None)

    assert (finding.status, finding.why) == ("absent", "bwrap is not installed")
    assert "bubblewrap" in finding.fix


def test_user_namespaces_that_are_forbidden_are_found_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = needs_bwrap()
    plain = probe_acts.words
    jail = [path, "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"]
    monkeypatch.setattr(probe_acts, "words", lambda *args: [*jail, *plain(*args)])

    finding = probe.user_namespaces(Facts(max_user_namespaces=0), None)

    assert finding.status == "absent"
    assert finding.why.startswith("user namespaces are switched off")


def test_an_old_landlock_is_a_degraded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "act", lambda _name: Act(ok=True, value=3))

    assert probe.landlock().status == "degraded"


def test_without_a_landlock_the_kernels_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Act(ok=False, step="create a ruleset", errno=38)
    monkeypatch.setattr(probe, "act", lambda _name: failed)

    finding = probe.landlock()

    assert (finding.status, finding.why) == ("absent", "create a ruleset: Function not implemented")


def test_seccomp_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    seccomp.program.cache_clear()

    finding = probe.seccomp()

    seccomp.program.cache_clear()
    assert finding.status == "absent"
    assert "callgate[sandbox]" in finding.fix


def test_a_workspace_without_a_tmpfs_is_counted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "act", lambda _name: Act(ok=False, step="mount", errno=1))

    finding = probe.workspace(Facts(userns_clone=0))

    assert finding.status == "degraded"
    assert finding.fix == "sysctl kernel.unprivileged_userns_clone=1"


def test_who_is_not_root_has_nothing_to_drop() -> None:
    finding = probe.uid_drop(Host(uid=1000))

    assert finding == Finding("uid drop", "enforced", "callgate itself is not root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop root")
def test_root_can_be_dropped_and_then_is_gone() -> None:
    assert probe.uid_drop(Host(uid=0)).status == "enforced"
    assert act("pidfd", DROP_ID).ok


def test_an_act_that_hangs_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_acts, "PROBE_TIMEOUT_S", 0.05)

    assert act("stay") == Act(ok=False, step="no answer within 0 s")


def test_a_process_that_was_left_behind_to_be_killed_ends_also_if_nobody_does_it() -> None:
    code = "from callgate.launcher import probe_child as p; p.STAY_S = 1; p.stay()"

    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30, check=False
    )

    # The pipe ends when the second one has gone too.
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


def test_an_act_that_dies_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_acts, "words", lambda *_: ["/bin/false"])

    assert act("any") == Act(ok=False, step="ended with 1")


def test_on_another_system_only_what_it_has_is_tried() -> None:
    assert [one.feature for one in probe.probes(Host(platform="darwin"))] == ["rlimits"]
    assert probe.probes(Host(platform="win32")) == []


@pytest.mark.parametrize(
    ("facts", "why", "fix"),
    [
        (Facts(max_user_namespaces=0), "switched off", "sysctl user.max_user_namespaces"),
        (Facts(userns_clone=0), "keeps user namespaces to root", "unprivileged_userns_clone=1"),
        (Facts(apparmor_restricts=1), "AppArmor", "/etc/apparmor.d/bwrap"),
        (
            Facts(seccomp_mode=2, container="docker", apparmor_restricts=1),
            "docker container's seccomp filter",
            "--security-opt seccomp",
        ),
        (Facts(seccomp_mode=2, container="podman"), "podman container", "podman run"),
        (Facts(seccomp_mode=2, container="kubernetes"), "kubernetes", "seccompProfile"),
        (Facts(container="docker"), "docker container may not", "docker run"),
        (Facts(seccomp_mode=2), "a seccomp filter over this process", "RestrictNamespaces"),
        (Facts(), "the kernel refused it", "dmesg"),
    ],
)
def test_each_cause_of_a_refusal_has_its_own_way_out(facts: Facts, why: str, fix: str) -> None:
    cause = no_namespaces(facts)

    assert why in cause.why
    assert fix in cause.fix


def test_the_surroundings_are_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    facts = probe.facts()

    limit = Path("/proc/sys/user/max_user_namespaces").read_text()
    assert facts.max_user_namespaces == int(limit)
    assert facts.container == "kubernetes"
