from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from callgate.launcher import doctor
from callgate.launcher.host import (
    cgroup,
    helper_program,
    lean_process,
    seccomp,
    survey,
    trial,
)
from callgate.launcher.host.causes import NamespaceFacts, no_namespaces
from callgate.launcher.host.trial import Tried, act
from callgate.launcher.plan.capabilities import DROP_ID, Cgroups, Host
from callgate.model import ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="probes Linux")

MIB = 2**20


@pytest.fixture(scope="module")
def host() -> Host:
    return survey.with_groups(survey.survey())


def needs_group(host: Host, controller: str) -> None:
    if host.cgroups.holder(controller) is None:
        pytest.skip(f"no {controller} controller: {host.cgroups.reason}")


def needs_bwrap() -> str:
    helper = helper_program.bwrap()
    if not helper.path:
        pytest.skip("bwrap is not installed")
    if not trial.sandbox(survey.survey(), helper.fd).present:
        pytest.skip("bwrap does not work here")
    return helper.path


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look for helper programs on the PATH only."""
    monkeypatch.setattr(helper_program, "DIRECTORIES", ())
    helper_program.bwrap.cache_clear()
    yield
    helper_program.bwrap.cache_clear()


@pytest.mark.parametrize("feature", ["rlimits", "tree kill", "pidfd", "terminal"])
def test_what_every_linux_has_is_found(host: Host, feature: str) -> None:
    assert doctor.LINUX[feature](host, NamespaceFacts())[0] == "enforced"


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
def test_a_limit_that_held_is_enforced(host: Host, controller: str) -> None:
    needs_group(host, controller)

    where = f"cgroup {host.cgroups.holder(controller)}"
    assert doctor.LINUX[controller](host, NamespaceFacts()) == ("enforced", where, "")


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
    monkeypatch.setattr(doctor, "GROUP_LIMITS", limits)

    status, why, fix = doctor.LINUX[controller](host, NamespaceFacts())

    assert status != "enforced"
    assert why.startswith("the limit was set and did not hold")
    assert fix


def test_a_group_is_ended_with_whoever_left_its_session(host: Host) -> None:
    if host.cgroups.v2 is None and "freezer" not in host.cgroups.v1:
        pytest.skip(f"no groups: {host.cgroups.reason}")

    assert doctor.ended_at_once(host, NamespaceFacts())[0] == "enforced"


def test_a_group_that_cannot_be_ended_is_not_called_enforced(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host.cgroups.v2 is None and "freezer" not in host.cgroups.v1:
        pytest.skip(f"no groups: {host.cgroups.reason}")
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(cgroup.Group, "kill", lambda _group: None)

    assert doctor.ended_at_once(host, NamespaceFacts())[0] == "degraded"
    assert left_behind(host) == []


def left_behind(host: Host) -> list[Path]:
    places = [host.cgroups.v2, *host.cgroups.v1.values()]
    return [path for place in places if place for path in Path(place).glob("callgate-probe-*")]


def test_no_group_is_left_behind(host: Host) -> None:
    for feature in ("memory", "pids", "cgroup"):
        doctor.LINUX[feature](host, NamespaceFacts())

    assert left_behind(host) == []


@pytest.mark.parametrize(
    ("controller", "status"), [("memory", "degraded"), ("pids", "degraded"), ("cpu", "absent")]
)
def test_without_a_controller_the_reason_and_the_way_out_are_told(
    controller: str, status: str
) -> None:
    bare = Host(uid=1000, cgroups=Cgroups(reason="nothing is mounted"))

    found, why, fix = doctor.LINUX[controller](bare, NamespaceFacts())

    assert found == status
    assert why.endswith("nothing is mounted")
    assert "Delegate=yes" in fix


def test_without_groups_each_process_is_killed_by_itself() -> None:
    bare = Host(uid=0, cgroups=Cgroups(reason="nothing is mounted"))

    status, _, fix = doctor.ended_at_once(bare, NamespaceFacts())

    assert status == "degraded"
    assert "cgroup2" in fix


def test_a_group_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    nowhere = Host(cgroups=Cgroups(v2=str(tmp_path / "gone"), v2_controllers=("memory",)))

    assert "gone" in doctor.LINUX["memory"](nowhere, NamespaceFacts())[1]
    assert "gone" in doctor.ended_at_once(nowhere, NamespaceFacts())[1]


def surveyed() -> Host:
    """As the user that we are: a stand-in for bwrap is not where another could reach it."""
    return survey.with_sandbox(msgspec.structs.replace(survey.survey(), uid=1000))


def test_a_sandbox_is_one_that_differs_in_every_namespace() -> None:
    needs_bwrap()

    assert doctor.sandbox(surveyed(), NamespaceFacts()) == ("enforced", "bwrap", "")


def fake_bwrap(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.chmod(0o755)
    program = directory / "bwrap"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.usefixtures("only_path")
def test_a_bwrap_that_shares_our_namespaces_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path, 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"', monkeypatch)

    host = surveyed()

    status, why, fix = doctor.sandbox(host, NamespaceFacts())

    assert not host.bwrap.present
    assert status == "absent"
    assert "user, pid, mnt, net, ipc, uts, cgroup" in why
    assert "setuid" in fix


@pytest.mark.usefixtures("only_path")
def test_a_bwrap_that_is_refused_has_its_words_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path, "echo setting up uid map: Permission denied >&2; exit 1", monkeypatch)

    _, why, fix = doctor.sandbox(surveyed(), NamespaceFacts(apparmor_restricts=1))

    assert why == (
        "AppArmor restricts user namespaces (Ubuntu 23.10 and later) "
        "(setting up uid map: Permission denied)"
    )
    assert "/etc/apparmor.d/bwrap" in fix


@pytest.mark.usefixtures("only_path")
def test_a_bwrap_that_is_not_there_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    status, why, fix = doctor.sandbox(surveyed(), NamespaceFacts())

    assert (status, why) == ("absent", "bwrap is not installed (package bubblewrap)")
    assert "bubblewrap" in fix


def test_user_namespaces_that_are_forbidden_are_found_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = needs_bwrap()
    plain = trial.words
    jail = [path, "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"]
    monkeypatch.setattr(trial, "words", lambda *args: [*jail, *plain(*args)])

    status, why, _ = doctor.user_namespaces(Host(uid=1000), NamespaceFacts(max_user_namespaces=0))

    assert status == "absent"
    assert why.startswith("user namespaces are switched off")


def fails(monkeypatch: pytest.MonkeyPatch, result: Tried) -> None:
    monkeypatch.setattr(trial, "act", lambda *_, **__: result)


def test_an_old_landlock_says_what_level_network_has_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails(monkeypatch, Tried(ok=True, value=3))

    status, why, _ = doctor.landlock(Host(), NamespaceFacts())

    assert (status, why) == ("enforced", "version 3: level network has fewer kinds of sockets")


def test_without_a_landlock_the_kernels_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, Tried(ok=False, reason="Function not implemented"))

    assert doctor.landlock(Host(), NamespaceFacts())[:2] == ("absent", "Function not implemented")


def test_a_wall_that_lets_a_write_through_is_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (
        "from callgate.launcher.warden import landlock\nlandlock.restrict = lambda *_, **__: None\n"
    )
    monkeypatch.setattr(trial, "stub", lambda module: with_fault(broken, module))

    assert act("wall") == Tried(ok=False, reason="refuse a write")


def with_fault(fault: str, module: str) -> str:
    lines = lean_process.stub(module).splitlines()
    at = next(number for number, line in enumerate(lines) if "from callgate" in line)
    return "\n".join([*lines[:at], fault, *lines[at:]])


def test_a_filter_that_refuses_nothing_is_found_out() -> None:
    allow_all = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)

    tried = act("seccomp", stdin=allow_all)

    assert (tried.ok, tried.reason) == (False, "Bad file descriptor")


def test_the_filter_of_sandboxes_refuses(host: Host) -> None:
    with suppress(seccomp.Unavailable):
        seccomp.program()
        assert doctor.filters(host, NamespaceFacts())[0] == "enforced"
        return
    pytest.skip("no libseccomp")


def test_seccomp_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "LIBRARY", "libcallgate-none.so.9")
    seccomp.program.cache_clear()

    status, _, fix = doctor.filters(Host(), NamespaceFacts())

    seccomp.program.cache_clear()
    assert status == "absent"
    assert "libseccomp2" in fix


def test_seccomp_on_another_machine_does_not_say_to_install_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "there is no list of system calls for riscv64"

    def other() -> bytes:
        raise seccomp.Unavailable(why)

    monkeypatch.setattr(seccomp, "program", other)

    status, said, fix = doctor.filters(Host(), NamespaceFacts())

    assert (status, said) == ("absent", why)
    assert "install" not in fix


def test_a_workspace_without_a_tmpfs_is_counted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, Tried(ok=False, reason="Operation not permitted"))

    status, _, fix = doctor.workspace(Host(), NamespaceFacts(userns_clone=0))

    assert status == "degraded"
    assert fix == "sysctl kernel.unprivileged_userns_clone=1"


def test_a_tmpfs_that_holds_more_than_it_may_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    if not act("tmpfs").ok:
        pytest.skip("no tmpfs of one's own")
    unbounded = (
        "from callgate.launcher.warden import libc\n"
        "mount = libc.mount\n"
        "libc.mount = lambda *args, **more: mount(*args[:4], **more)\n"
    )
    monkeypatch.setattr(trial, "stub", lambda module: with_fault(unbounded, module))

    assert act("tmpfs") == Tried(ok=False, reason="exceed the size")


def test_who_is_not_root_has_nothing_to_drop() -> None:
    found = doctor.uid_drop(Host(uid=1000), NamespaceFacts())

    assert found == ("enforced", "callgate itself is not root", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop root")
def test_root_can_be_dropped_and_then_is_gone() -> None:
    assert doctor.uid_drop(Host(uid=0), NamespaceFacts())[0] == "enforced"
    assert act("pidfd", DROP_ID).ok


def test_an_act_that_hangs_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.05)

    assert act("stay") == Tried(ok=False, reason="no answer within 0 s")


def test_a_process_that_was_left_behind_to_be_killed_ends_also_if_nobody_does_it() -> None:
    code = "from callgate.launcher.warden import trial_acts as p; p.STAY_S = 1; p.stay()"

    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30, check=False
    )

    # The pipe ends when the second one has gone too.
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


def test_an_act_that_cannot_begin_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "words", lambda *_: ["/nonexistent/python"])

    reason = "/nonexistent/python could not be started: No such file or directory"
    assert act("any") == Tried(ok=False, reason=reason)


def test_an_act_that_dies_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "words", lambda *_: ["/bin/false"])

    assert act("any") == Tried(ok=False, reason="ended with 1")


def test_on_another_system_only_what_it_has_is_tried() -> None:
    tried: list[str] = []

    for platform in ("darwin", "win32"):
        tried += [one.feature for one in doctor.find(Host(platform=platform), lambda _: None)]

    assert tried == ["rlimits"]


@pytest.mark.parametrize(
    ("facts", "why", "fix"),
    [
        (NamespaceFacts(max_user_namespaces=0), "switched off", "sysctl user.max_user_namespaces"),
        (
            NamespaceFacts(userns_clone=0),
            "keeps user namespaces to root",
            "unprivileged_userns_clone=1",
        ),
        (NamespaceFacts(apparmor_restricts=1), "AppArmor", "/etc/apparmor.d/bwrap"),
        (
            NamespaceFacts(seccomp_mode=2, container="docker", apparmor_restricts=1),
            "docker container's seccomp filter",
            "--security-opt seccomp",
        ),
        (NamespaceFacts(seccomp_mode=2, container="podman"), "podman container", "podman run"),
        (NamespaceFacts(seccomp_mode=2, container="kubernetes"), "kubernetes", "seccompProfile"),
        (NamespaceFacts(container="docker"), "docker container may not", "docker run"),
        (
            NamespaceFacts(seccomp_mode=2),
            "a seccomp filter over this process",
            "RestrictNamespaces",
        ),
        (NamespaceFacts(), "the kernel refused it", "dmesg"),
    ],
)
def test_each_cause_of_a_refusal_has_its_own_way_out(
    facts: NamespaceFacts, why: str, fix: str
) -> None:
    cause = no_namespaces(facts)

    assert why in cause.why
    assert fix in cause.fix


def test_the_surroundings_are_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    facts = doctor.facts()

    limit = Path("/proc/sys/user/max_user_namespaces").read_text()
    assert facts.max_user_namespaces == int(limit)
    assert facts.container == "kubernetes"
