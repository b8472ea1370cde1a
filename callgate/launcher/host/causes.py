"""Why a host does not let a process have namespaces, and what its owner can do about it.

Pure: the facts come from /proc and are handed in. The kernel answers every case with the
same "not permitted", so the cause is found by elimination, the most specific first.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class NamespaceFacts(msgspec.Struct, frozen=True):
    """What a host says of itself; None where it has no such thing."""

    apparmor_restricts: int | None = None
    """kernel.apparmor_restrict_unprivileged_userns: Ubuntu, from 23.10 on."""
    userns_clone: int | None = None
    """kernel.unprivileged_userns_clone: Debian, and kernels patched like it."""
    max_user_namespaces: int | None = None
    seccomp_mode: int = 0
    """Of this process: 2 means that a filter is over us already."""
    container: str | None = None
    """`docker`, `podman`, `kubernetes`, if we are inside of one."""


class Cause(NamedTuple):
    """Why, and how to change it."""

    why: str
    fix: str


SECCOMP_FILTERED = 2
_PROFILE = "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"


def no_namespaces(facts: NamespaceFacts) -> Cause:
    """Return why a user namespace, and what bwrap makes with it, was refused."""
    return (
        _switched_off(facts)
        or _confined(facts)
        or Cause("the kernel refused it", "see the kernel's log (dmesg) for who did")
    )


def _switched_off(facts: NamespaceFacts) -> Cause | None:
    if facts.max_user_namespaces == 0:
        return Cause(
            "user namespaces are switched off (user.max_user_namespaces is 0)",
            "sysctl user.max_user_namespaces=10000",
        )
    if facts.userns_clone == 0:
        return Cause(
            "the kernel keeps user namespaces to root (kernel.unprivileged_userns_clone is 0)",
            "sysctl kernel.unprivileged_userns_clone=1",
        )
    return None


def _confined(facts: NamespaceFacts) -> Cause | None:
    filtered = facts.seccomp_mode == SECCOMP_FILTERED
    if facts.container is not None:
        # A container has the host's sysctls too; its own confinement is what its user can change.
        what = "'s seccomp filter forbids" if filtered else " may not make"
        why = f"this {facts.container} container{what} new namespaces"
        return Cause(why, _CONTAINER_FIXES.get(facts.container, _CONTAINER_FIXES["docker"]))
    if facts.apparmor_restricts:
        return Cause(
            "AppArmor restricts user namespaces (Ubuntu 23.10 and later)",
            f"put `{_PROFILE}` into /etc/apparmor.d/bwrap and reload AppArmor, or "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if filtered:
        return Cause(
            "a seccomp filter over this process forbids new namespaces",
            "start callgate without that filter (systemd: RestrictNamespaces=no)",
        )
    return None


_CONTAINER_FIXES = {
    "docker": "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, "
    "or a seccomp profile that allows clone, unshare, mount, umount2 and pivot_root",
    "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=/proc/*",
    "kubernetes": "securityContext: {seccompProfile: {type: Unconfined}}, "
    "appArmorProfile: {type: Unconfined} and procMount: Unmasked",
}
