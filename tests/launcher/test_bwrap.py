"""The arguments that make a sandbox."""

from __future__ import annotations

import msgspec
import pytest

from callgate.launcher.plan.bwrap import (
    Bind,
    Sandbox,
    arguments,
    is_below,
    needs_fresh_workspace,
    sandbox,
    trees,
)
from callgate.launcher.plan.capabilities import Command, Host
from callgate.launcher.warden.warden_mounts import STAGE
from callgate.model import LaunchSpec, MountSpec

HOST = Host(
    interpreter_prefix="/usr", root_links={"/bin": "usr/bin"}, root_paths=("/usr", "/lib64")
)
BOX = Sandbox(
    network=False,
    binds=(Bind("/usr"), Bind("/srv", writable=True)),
    links=(("/bin", "usr/bin"),),
    cwd="/workspace",
    landlock=None,
    seccomp=True,
)


def pairs(words: list[str], option: str) -> list[list[str]]:
    return [words[at + 1 : at + 3] for at, word in enumerate(words) if word == option]


def test_what_the_policy_mounts_can_be_below_tmp() -> None:
    words = arguments(BOX, "/runs/1", STAGE)

    at = [number for number, word in enumerate(words) if word in ("--bind", "--ro-bind")]
    assert words[at[1] : at[1] + 3] == ["--bind", "/runs/1/tmp", STAGE]
    assert [words[number + 2] for number in at[2:]] == ["/usr", "/srv"]


def test_only_what_is_writable_is_bound_so() -> None:
    words = arguments(BOX, "/runs/1", STAGE)

    assert pairs(words, "--ro-bind") == [["/usr", "/usr"]]
    assert pairs(words, "--bind")[2:] == [["/srv", "/srv"]]


def test_a_staged_path_is_taken_from_the_stage() -> None:
    words = arguments(msgspec.structs.replace(BOX, staged=True), f"{STAGE}/workspace", STAGE)

    assert pairs(words, "--ro-bind") == [[f"{STAGE}/0", "/usr"]]
    assert pairs(words, "--bind")[2:] == [[f"{STAGE}/1", "/srv"]]


def test_what_is_inside_of_another_bind_comes_with_it() -> None:
    """bwrap would follow a link that an earlier run has put where the inner one belongs."""
    binds = (Bind("/srv", writable=True), Bind("/srv/a"), Bind("/tmp/b"))  # noqa: S108
    box = msgspec.structs.replace(BOX, staged=True, binds=binds)

    words = arguments(box, f"{STAGE}/workspace", STAGE)

    assert pairs(words, "--ro-bind") == []
    assert pairs(words, "--bind")[2:] == [[f"{STAGE}/0", "/srv"]]
    assert [tree.parts for tree in trees(binds)] == [(), (binds[2],), (binds[1],)]


@pytest.mark.parametrize(
    ("path", "staged", "fresh"),
    [("/tmp/a", False, True), ("/tmp/a", True, False), ("/srv", False, False)],  # noqa: S108
)
def test_without_a_stage_a_mount_in_the_workspace_needs_a_fresh_one(
    path: str, *, staged: bool, fresh: bool
) -> None:
    box = msgspec.structs.replace(BOX, staged=staged, binds=(Bind(path),))

    assert needs_fresh_workspace(box) is fresh


def test_the_root_is_read_only_in_the_end() -> None:
    words = arguments(BOX, "/runs/1", STAGE)

    assert words.index("--remount-ro") > max(n for n, word in enumerate(words) if word == "--bind")


def test_every_capability_is_dropped_in_so_many_words() -> None:
    """bwrap without setuid leaves none anyway; one with it would not."""
    words = arguments(BOX, "/runs/1", STAGE)

    assert pairs(words, "--cap-drop")[0][0] == "ALL"


def test_a_network_namespace_is_left_out_only_at_level_network() -> None:
    assert "--unshare-net" in arguments(BOX, "/runs/1", STAGE)
    with_network = Sandbox(True, (), (), "/", None, seccomp=False)
    assert "--unshare-net" not in arguments(with_network, "/runs/1", STAGE)


def test_a_mount_inside_another_is_made_after_it() -> None:
    spec = LaunchSpec(
        "a",
        ("x",),
        level="standard",
        mounts=(MountSpec("/srv/a/b", read_only=False), MountSpec("/srv")),
    )

    box = sandbox(spec, HOST, Command("/usr/bin/x"), seccomp=True)

    assert [bind.path for bind in box.binds if bind.path.startswith("/srv")] == ["/srv", "/srv/a/b"]


def test_a_mount_is_the_same_with_a_slash_at_its_end() -> None:
    mounts = (MountSpec("/srv/", read_only=False), MountSpec("/srv/a", read_only=False))
    spec = LaunchSpec("a", ("x",), level="standard", mounts=mounts)

    box = sandbox(spec, HOST, Command("/usr/bin/x"), seccomp=True)

    assert [bind.path for bind in box.binds if bind.writable] == ["/srv"]


def test_what_is_shown_already_is_not_bound_again() -> None:
    spec = LaunchSpec("a", ("x",), level="strict", mounts=(MountSpec("/usr/share"),))

    box = sandbox(spec, HOST, Command("/usr/bin/x", reaches=("/usr/bin/x",)), seccomp=True)

    assert [bind.path for bind in box.binds] == ["/usr", "/lib64"]


def test_a_name_that_only_begins_alike_is_not_inside() -> None:
    assert is_below("/srv/a", "/srv")
    assert is_below("/srv", "/srv")
    assert not is_below("/srv2", "/srv")


@pytest.mark.parametrize("path", ["/srv/a/../b", "//srv//b/", "/srv/./b"])
def test_a_mount_has_one_spelling(path: str) -> None:
    spec = LaunchSpec("a", ("x",), level="standard", mounts=(MountSpec(path),))

    box = sandbox(spec, HOST, Command("/usr/bin/x"), seccomp=True)

    assert "/srv/b" in [bind.path for bind in box.binds]
