"""The filter, read: what the compiled program answers for each call there can be.

The real calls in real sandboxes are in tests/containment/test_system_calls.py.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.launcher.host import seccomp, syscalls
from callgate.launcher.host.seccomp import ALLOW, AS_IF_MISSING, KILL_PROCESS, REFUSE
from tests.containment.capabilities import need
from tests.launcher.bpf import AARCH64, ARM, I386, X32_BIT, X86_64, Instruction, parse, verdict
from tests.launcher.docker_profile import DOCKER_ALLOWS, DOCKER_ALLOWS_SOME

if TYPE_CHECKING:
    from collections.abc import Iterator

AIO = {f"io_{verb}" for verb in ("setup", "destroy", "submit", "cancel", "getevents", "pgetevents")}
STRICTER_THAN_DOCKER = {
    "ptrace": "reads and drives other processes",
    "process_vm_readv": "reads the memory of other processes",
    "process_vm_writev": "writes the memory of other processes",
    "name_to_handle_at": "the first half of opening files by handle, around the mounts",
    "modify_ldt": "memory segments, for 16-bit programs; has had holes",
    "vmsplice": "pages shared between a pipe and a process; has had holes",
    "adjtimex": "the machine's clock; reading it needs no such call",
    "clock_adjtime": "the machine's clock; reading it needs no such call",
    "fanotify_mark": "of no use without fanotify_init, which both refuse",
    "set_thread_area": "for 32-bit programs only",
    "get_thread_area": "for 32-bit programs only",
    "epoll_ctl_old": "never implemented",
    "epoll_wait_old": "never implemented",
    **dict.fromkeys(AIO, "its queues are counted for the whole machine; one sandbox took all"),
    "uretprobe": "the kernel makes this call itself, past the filter",
}
LOOSER_THAN_DOCKER: dict[str, str] = {}
STRICTER_ARGUMENTS = {
    "ioctl": "TIOCSTI and TIOCLINUX type into a terminal as if they were the user",
    "socket": "no families but four, of netlink only routes, of the internet only TCP, UDP and "
    "ping: others go around landlock's rule for TCP, or reach parts of the kernel with holes",
    "socketpair": "only Unix sockets come in pairs",
}
"""What Docker allows with any arguments, or with more."""
SAME_ARGUMENTS = {"clone", "personality"}
WITH_ARGUMENTS = STRICTER_ARGUMENTS.keys() | SAME_ARGUMENTS

NEWEST = 466
HIGHEST = 1023
NOT_YET = {
    "futex_waitv": 449,
    "set_mempolicy_home_node": 450,
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
}
"""Numbers of names that libseccomp may not know yet."""
MISSING = {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"} | AIO

HIGH = 0x7_0000_0000
"""Bits that the kernel does not look at where it takes 32."""

NATIVE = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine, 0)
need_native = pytest.mark.skipif(not NATIVE, reason="no list for this architecture")


class Other:
    """libseccomp, compiling for another architecture than the one it runs on."""

    def __init__(self, library: Any, arch: int) -> None:
        self._library = library
        self._arch = arch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def seccomp_arch_native(self) -> int:
        return self._arch

    def seccomp_init(self, action: int) -> Any:
        context = self._library.seccomp_init(action)
        native = self._library.seccomp_arch_native()
        for change, arch in (("add", self._arch), ("remove", native)):
            call = getattr(self._library, f"seccomp_arch_{change}")
            call.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
            assert call(context, arch) == 0
        return context

    def seccomp_rule_add_array(self, context: Any, action: int, number: int, *rest: Any) -> int:
        code: int = self._library.seccomp_rule_add_array(context, action, number, *rest)
        # It translates numbers by name; those that it has no name for are tested natively.
        return 0 if code == -errno.EFAULT else code


def number_of(library: Any, arch: int, name: str) -> int:
    """A call's number there; negative if it has none."""
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    found: int = resolve(arch, name.encode())
    return NOT_YET.get(name, -1) if found == -1 else found


def name_of(library: Any, arch: int, number: int) -> bytes | None:
    resolve = library.seccomp_syscall_resolve_num_arch
    resolve.restype = ctypes.c_char_p
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_int)
    found: bytes | None = resolve(arch, number)
    return found


@pytest.fixture(scope="module")
def library() -> Any:
    need("seccomp")
    return seccomp.load()


@pytest.fixture(scope="module")
def native() -> list[Instruction]:
    need("seccomp")
    return parse(seccomp.program())


def expected(library: Any, arch: int) -> Iterator[tuple[int, int]]:
    """Each number and what it must be answered, by Docker's list and the differences."""
    names = (DOCKER_ALLOWS | LOOSER_THAN_DOCKER.keys()) - STRICTER_THAN_DOCKER.keys()
    allowed = {number_of(library, arch, name) for name in names - WITH_ARGUMENTS}
    missing = {number_of(library, arch, name) for name in MISSING}
    judged = {number_of(library, arch, name) for name in WITH_ARGUMENTS}
    unknown = {n for n in range(424) if name_of(library, arch, n) is None} - {335, 336}
    if arch == AARCH64:
        unknown |= {335, 336}
    for number in range(HIGHEST + 1):
        if number in judged:
            continue
        if number > NEWEST or number in missing | unknown:
            yield number, AS_IF_MISSING
        else:
            yield number, ALLOW if number in allowed else REFUSE


@need_native
def test_each_number_of_this_machine_gets_the_expected_answer(
    library: Any, native: list[Instruction]
) -> None:
    wanted = dict(expected(library, NATIVE))

    assert {n: verdict(native, NATIVE, n) for n in wanted} == wanted
    assert sum(answer == ALLOW for answer in wanted.values()) > 200


@need_native
def test_each_name_of_the_other_machine_gets_the_expected_answer(library: Any) -> None:
    """Compiled here for there. libseccomp carries names over, not numbers, so what has only a
    number is left to `test_each_number_of_this_machine_gets_the_expected_answer`."""
    arch = AARCH64 if NATIVE == X86_64 else X86_64
    other = Other(library, arch)
    ioctl = number_of(library, arch, "ioctl")
    every = seccomp.rules(other)
    missing = {number_of(library, NATIVE, name) for name in MISSING}
    named = [rule for rule in every if rule[0] != AS_IF_MISSING or rule[1] in missing]
    code = parse(seccomp.before(ioctl) + seccomp.export(other, named))
    unassigned = {n for span in syscalls.UNASSIGNED[arch] for n in span}
    wanted = dict(expected(library, arch))
    kept = {n: wanted[n] for n in wanted.keys() - set(NOT_YET.values()) - unassigned}

    assert {n: verdict(code, arch, n) for n in kept} == kept
    aio = {number_of(library, arch, name) for name in AIO}
    absent = {n for n, answer in wanted.items() if answer == AS_IF_MISSING and n < 424}
    assert absent == unassigned | aio
    assert verdict(code, arch, ioctl, (0, HIGH | 0x5412)) == REFUSE
    assert verdict(code, arch, ioctl, (0, 0x5401)) == ALLOW
    assert verdict(code, arch, number_of(library, arch, "socket"), (2, 1, 262)) == REFUSE
    assert verdict(code, arch, number_of(library, arch, "clone"), (17,)) == ALLOW
    assert verdict(code, NATIVE, 1) == KILL_PROCESS


@need_native
@pytest.mark.parametrize("arch", [I386, ARM, 0, 0xFFFF_FFFF])
def test_nothing_of_another_architecture_is_allowed(native: list[Instruction], arch: int) -> None:
    assert {verdict(native, arch, n) for n in range(NEWEST + 1)} <= {KILL_PROCESS, REFUSE}
    assert {verdict(native, arch, n) for n in range(NEWEST + 1, HIGHEST)} == {AS_IF_MISSING}


@need_native
def test_only_one_number_of_another_architecture_is_not_killed(native: list[Instruction]) -> None:
    terminal = (0, 0x5412)
    answers = [verdict(native, I386, n, terminal) for n in range(NEWEST + 1)]

    assert sorted({answers.count(answer) for answer in answers}) == [1, NEWEST]


@need_native
def test_no_number_of_x32_is_allowed(native: list[Instruction]) -> None:
    answers = {verdict(native, NATIVE, X32_BIT | n) for n in range(HIGHEST + 1)}

    assert answers == {AS_IF_MISSING}


@need_native
@pytest.mark.parametrize("number", [-1, 0x7FFF_FFFF, 0x8000_0000, 0x3FFF_FFFF, NEWEST + 1])
def test_what_is_newer_than_the_list_is_answered_as_by_an_older_kernel(
    native: list[Instruction], number: int
) -> None:
    assert verdict(native, NATIVE, number) == AS_IF_MISSING


def test_each_name_is_known_to_libseccomp_or_has_its_number(library: Any) -> None:
    listed = (*syscalls.ALLOWED, *(name for name, _ in syscalls.ALLOWED_IF), *syscalls.MISSING)

    unknown = {name for name in listed if number_of(library, X86_64, name) == -1}

    assert unknown == set()


@pytest.mark.parametrize("arch", [X86_64, AARCH64])
def test_numbers_are_those_of_libseccomp_where_it_knows_the_name(library: Any, arch: int) -> None:
    """Or of the table above, where this libseccomp does not."""
    resolved = {name: number_of(library, arch, name) for name in syscalls.NUMBERS}

    assert resolved == syscalls.NUMBERS


def test_each_difference_to_dockers_profile_has_its_reason() -> None:
    ours = {*syscalls.ALLOWED, *(name for name, _ in syscalls.ALLOWED_IF)}

    assert DOCKER_ALLOWS - ours == STRICTER_THAN_DOCKER.keys()
    assert ours - DOCKER_ALLOWS == LOOSER_THAN_DOCKER.keys()
    assert {name for name, _ in syscalls.ALLOWED_IF} | {"ioctl"} == WITH_ARGUMENTS
    assert DOCKER_ALLOWS_SOME <= WITH_ARGUMENTS
    # What Docker's profile says of a family.
    allowed = {
        words
        for words in itertools.product(FAMILIES, KINDS, PROTOCOLS)
        if socket_is_allowed(*words)
    }
    assert {family for family, _, _ in allowed} <= {
        n for n in FAMILIES if n < 38 or n == 39 or n > 40
    }


FAMILIES = range(50)
KINDS = (*range(11), 1 | 0o2000000, 2 | 0o4000, 3 | 0o2004000)
PROTOCOLS = (0, 1, 2, 4, 6, 9, 12, 16, 17, 21, 33, 58, 132, 136, 255, 256, 262)


def socket_is_allowed(family: int, kind: int, protocol: int) -> bool:
    match family, kind & 0xF:
        case 1, _:
            return True
        case 16, _:
            return protocol == 0
        case 2 | 10, 1:
            return protocol in (0, 6)
        case 2 | 10, 2:
            return protocol in (0, 17, 1 if family == 2 else 58)
    return False


@need_native
@pytest.mark.parametrize("high", [(0, 0, 0), (HIGH, 0, 0), (0, HIGH, 0), (0, 0, HIGH)])
def test_sockets_are_those_of_the_list_whatever_the_upper_bits(
    library: Any, native: list[Instruction], high: tuple[int, int, int]
) -> None:
    number = number_of(library, NATIVE, "socket")
    every = list(itertools.product(FAMILIES, KINDS, PROTOCOLS))

    allowed = {
        given
        for given in every
        if verdict(native, NATIVE, number, [a | b for a, b in zip(given, high, strict=True)])
        == ALLOW
    }

    assert allowed == {given for given in every if socket_is_allowed(*given)}


words = st.one_of(
    st.sampled_from((0, 1, 2, 8, 10, 16, 38, 40, 0x5401, 0x5412, 0x541C, 0x2_0008, 0xFFFF_FFFF)),
    st.sampled_from([1 << bit for bit in range(32)]),
    st.integers(0, 0xFFFF_FFFF),
)


@need_native
@given(
    name=st.sampled_from(sorted(WITH_ARGUMENTS)),
    args=st.lists(words, min_size=6, max_size=6),
    high=st.lists(st.integers(0, 0xFFFF_FFFF), min_size=6, max_size=6),
)
def test_no_bit_decides_that_the_kernel_does_not_look_at(
    library: Any, native: list[Instruction], name: str, args: list[int], high: list[int]
) -> None:
    number = number_of(library, NATIVE, name)
    full = [low | upper << 32 for low, upper in zip(args, high, strict=True)]

    assert verdict(native, NATIVE, number, full) == verdict(native, NATIVE, number, args)


@need_native
@given(flags=st.integers(0, 2**64 - 1))
def test_clone_makes_no_namespace(library: Any, native: list[Instruction], flags: int) -> None:
    number = number_of(library, NATIVE, "clone")
    new = (0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000)

    for one in (0, *new):
        answer = verdict(native, NATIVE, number, (flags & ~sum(new) | one,))
        assert answer == (REFUSE if one else ALLOW)
    assert verdict(native, NATIVE, number, (flags,)) == (REFUSE if flags & sum(new) else ALLOW)


@need_native
@given(persona=words)
def test_personality_changes_nothing_that_protects(
    library: Any, native: list[Instruction], persona: int
) -> None:
    number = number_of(library, NATIVE, "personality")
    kept = {0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF}

    answer = verdict(native, NATIVE, number, (persona,))

    assert answer == (ALLOW if persona in kept else REFUSE)


@need_native
@given(request=words)
def test_all_requests_but_two_pass_to_devices(
    library: Any, native: list[Instruction], request: int
) -> None:
    number = number_of(library, NATIVE, "ioctl")

    answer = verdict(native, NATIVE, number, (0, request))

    assert answer == (REFUSE if request in (0x5412, 0x541C) else ALLOW)


@need_native
@given(family=words)
def test_pairs_of_sockets_are_unix_sockets(
    library: Any, native: list[Instruction], family: int
) -> None:
    number = number_of(library, NATIVE, "socketpair")

    answer = verdict(native, NATIVE, number, (family, 1, 0))

    assert answer == (ALLOW if family == 1 else REFUSE)


def test_a_machine_without_a_list_gets_no_filter(library: Any) -> None:
    riscv64 = Other(library, 0xC000_00F3)

    with pytest.raises(seccomp.Unavailable, match="no list of system calls"):
        list(seccomp.rules(riscv64))


def test_a_rule_that_is_not_taken_leaves_no_filter(library: Any) -> None:
    class Refusing(Other):
        def seccomp_init(self, action: int) -> Any:
            return self._library.seccomp_init(action)

        def seccomp_rule_add_array(self, *_args: Any) -> int:
            return -errno.EINVAL

    with pytest.raises(seccomp.Unavailable, match="a rule for call 1 "):
        seccomp.export(Refusing(library, NATIVE), [(ALLOW, 1, ())])


@pytest.mark.parametrize("name", ["libcallgate-none.so.9", "libc.so.6"])
def test_without_the_library_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(seccomp, "LIBRARY", name)

    with pytest.raises(seccomp.NotInstalled, match="libseccomp cannot be loaded"):
        seccomp.load()
