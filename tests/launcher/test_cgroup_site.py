"""Where groups can be made, from what the kernel says of mounts and of callgate itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.launcher.host.cgroup_site import _mounts, _own, _place

HYBRID = """\
30 25 0:26 / /sys/fs/cgroup ro,nosuid shared:5 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:6 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""
CONTAINER = "900 899 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n"


def test_every_hierarchy_is_found_by_its_controllers() -> None:
    assert _mounts(HYBRID) == {
        "": ("/", "/sys/fs/cgroup/unified"),
        "rw": ("/", "/sys/fs/cgroup/cpu,cpuacct"),
        "cpu": ("/", "/sys/fs/cgroup/cpu,cpuacct"),
        "cpuacct": ("/", "/sys/fs/cgroup/cpu,cpuacct"),
        "memory": ("/", "/sys/fs/cgroup/memory"),
    }


def test_callgates_own_group_is_found_in_each_hierarchy() -> None:
    text = "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/c:d\n0::/user.slice\n"

    own = _own(text)

    assert (own["cpu"], own["cpuacct"], own["memory"]) == ("/a", "/a", "/a/b")
    assert (own["name=systemd"], own[""]) == ("/c:d", "/user.slice")


@pytest.mark.parametrize(
    ("mount", "own", "place"),
    [
        (("/", "/sys/fs/cgroup"), "/user.slice/x.scope", "/sys/fs/cgroup/user.slice/x.scope"),
        (("/", "/sys/fs/cgroup"), "/", "/sys/fs/cgroup"),
        (("/docker/abc", "/sys/fs/cgroup"), "/docker/abc/d", "/sys/fs/cgroup/d"),
        (("/docker/abc", "/sys/fs/cgroup"), "/docker/abcd", None),
        (("/docker/abc", "/sys/fs/cgroup"), "/elsewhere", None),
    ],
)
def test_a_group_is_where_its_mount_shows_it(
    mount: tuple[str, str], own: str, place: str | None
) -> None:
    assert _place(mount, own) == (None if place is None else Path(place))


def test_a_mount_of_a_part_of_the_hierarchy_says_which() -> None:
    assert _mounts(CONTAINER) == {"": ("/docker/abc", "/sys/fs/cgroup")}
