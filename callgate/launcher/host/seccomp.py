"""The filter of system calls that bwrap loads: a list of permissions, `syscalls.py`.

What is not on the list fails with EPERM. What is newer than the list fails with ENOSYS, so
that libc does what it does on an older kernel. Programs of another architecture (32 bits) are
killed. No argument is compared in bits that the kernel does not look at.

libseccomp compiles the list; a few instructions of our own go before it, for what libseccomp
cannot say: "all numbers above this one", and "all requests but these two". They only refuse,
so they cannot open what libseccomp closes. The program is made once in a process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from callgate.launcher.host import syscalls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from callgate.launcher.host.syscalls import Comparison
    from callgate.launcher.plan.bwrap import Refused

LIBRARY: Final = "libseccomp.so.2"
"""By the name that the loader knows: `ctypes.util.find_library` starts processes."""

ALLOW: Final = 0x7FFF_0000
KILL_PROCESS: Final = 0x8000_0000
_ERRNO: Final = 0x0005_0000
REFUSE: Final = _ERRNO | errno.EPERM
AS_IF_MISSING: Final = _ERRNO | errno.ENOSYS

_BAD_ARCHITECTURE: Final = 2
_OPTIMIZE: Final = 8
_BINARY_TREE: Final = 2
_MASKED_EQUAL: Final = 7

_LOAD, _IF_EQUAL, _IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_NUMBER_AT: Final = 0
_SECOND_ARGUMENT_AT: Final = 24
"""Its low half, for both architectures are little-endian."""

Rule = tuple[int, int, tuple["Comparison", ...]]
"""What to do, with which call, if all comparisons hold."""


class Unavailable(Exception):  # a capability's state
    """Raised by `program` where there is no filter on this host; the text says why."""


class NotInstalled(Unavailable):
    """Raised by `program` where libseccomp is what is missing."""


class _Argument(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("index", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


@cache
def program(refused: tuple[Refused, ...] = ()) -> bytes:
    """Return the filter as BPF, without what is refused beside the list; raises `Unavailable`."""
    library = load()
    return before(_number(library, "ioctl")) + export(library, rules(library, refused))


def load() -> Any:
    """Return libseccomp with the types of what we call; raises `NotInstalled`."""
    try:
        library: Any = ctypes.CDLL(LIBRARY)
        library.seccomp_init.restype = ctypes.c_void_p
        library.seccomp_init.argtypes = (ctypes.c_uint32,)
        library.seccomp_release.restype = None
        library.seccomp_release.argtypes = (ctypes.c_void_p,)
        library.seccomp_arch_native.restype = ctypes.c_uint32
        library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
        library.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
        library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
        library.seccomp_rule_add_array.argtypes = (
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
            ctypes.POINTER(_Argument),
        )
    except (OSError, AttributeError) as error:
        raise NotInstalled(f"libseccomp cannot be loaded ({error})") from None
    return library


def rules(library: Any, refused: Collection[Refused] = ()) -> Iterator[Rule]:
    """Yield the rules for this machine; raises `Unavailable` where no list has been written."""
    unassigned = syscalls.UNASSIGNED.get(library.seccomp_arch_native())
    if unassigned is None:
        raise Unavailable(f"there is no list of system calls for {os.uname().machine}")
    for name in syscalls.ALLOWED:
        if name not in refused:  # `listen`
            yield ALLOW, _number(library, name), ()
    for name, given in syscalls.allowed_if(refused):
        yield ALLOW, _number(library, name), given
    yield from ((AS_IF_MISSING, _number(library, name), ()) for name in syscalls.MISSING)
    yield from ((AS_IF_MISSING, number, ()) for each in unassigned for number in each)


def _number(library: Any, name: str) -> int:
    """Return a call's number; -1 is unknown, and less than that is not on this architecture."""
    known = syscalls.NUMBERS.get(name)
    return int(library.seccomp_syscall_resolve_name(name.encode())) if known is None else known


def export(library: Any, rules: Iterable[Rule]) -> bytes:
    """Return the program of these rules; raises `Unavailable` unless it takes each."""
    context = library.seccomp_init(REFUSE)
    try:
        failed = library.seccomp_attr_set(context, _BAD_ARCHITECTURE, KILL_PROCESS)
        _check(failed, "an action for other architectures")
        # The kernel runs the program for every number as it loads it, and for every call whose
        # arguments are compared. A libseccomp before 2.5 can make a chain only.
        library.seccomp_attr_set(context, _OPTIMIZE, _BINARY_TREE)
        for action, number, comparisons in rules:
            if number == -1:
                continue  # it stays refused
            wanted = [_Argument(at, _MASKED_EQUAL, mask, value) for at, mask, value in comparisons]
            given = (_Argument * len(wanted))(*wanted)
            failed = library.seccomp_rule_add_array(context, action, number, len(wanted), given)
            _check(failed, f"a rule for call {number}")
        with os.fdopen(os.memfd_create("seccomp"), "r+b") as file:
            _check(library.seccomp_export_bpf(context, file.fileno()), "the program")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


def _check(code: int, what: str) -> None:
    if code < 0:
        raise Unavailable(f"libseccomp does not take {what} ({os.strerror(-code)})")


def before(ioctl: int) -> bytes:
    """Return the instructions of our own; each that does not return goes on to the next.

    They look at no architecture: the list does, and to refuse too much of one that will be
    killed harms nobody.
    """
    types_in, pastes = syscalls.TERMINAL_IOCTLS
    return b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _NUMBER_AT),
            (_IF_GREATER, 0, 1, syscalls.NEWEST),
            (_RETURN, 0, 0, AS_IF_MISSING),
            (_IF_EQUAL, 0, 4, ioctl),
            (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
            (_IF_EQUAL, 1, 0, types_in),
            (_IF_EQUAL, 0, 1, pastes),
            (_RETURN, 0, 0, REFUSE),
        )
    )
