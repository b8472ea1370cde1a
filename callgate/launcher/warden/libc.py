"""The system calls that Python has no name for, each raising `OSError` like the rest of `os`.

Linux; on other systems `available` is False and nobody calls the functions. Stdlib only:
the warden and the shim load this.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

available = sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_SET_CHILD_SUBREAPER = 36

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, argument: int = 0, more: int = 0) -> int:
    """Return the result, which is the answer for options that ask."""
    zero = ctypes.c_ulong(0)
    words = ctypes.c_ulong(argument), ctypes.c_ulong(more), zero, zero
    return _checked(_libc.prctl(option, *words))


def call(number: int, *arguments: bytes | int | None) -> int:
    """Make any system call: bytes go as a pointer, numbers as they are."""
    words = [each if isinstance(each, bytes) else ctypes.c_long(each or 0) for each in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words))


def unshare(flags: int) -> None:
    """Leave namespaces."""
    _checked(_libc.unshare(flags))


def setns(fd: int) -> None:
    """Enter the namespace behind a descriptor."""
    _checked(_libc.setns(fd, 0))


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """Mount; `data` are the file system's own options."""
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            None if data is None else data.encode(),
        ),
        target,
    )


_MOUNT_SETATTR = 442
_EMPTY_PATH, _RECURSIVE = 0x1000, 0x8000
_READ_ONLY = 1


def bind(source: int, target: int) -> None:
    """Mount what one descriptor is on what another is, with everything that is mounted below.

    No name is looked at: the links of /proc/self/fd lead to the open files themselves.
    """
    mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", flags=MS_BIND | MS_REC)


def make_read_only(fd: int) -> None:
    """Make a mount read-only, with everything that is mounted below; Linux 5.12."""
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    flags = _EMPTY_PATH | _RECURSIVE
    call(_MOUNT_SETATTR, fd, b"", flags, attributes, len(attributes))


def unmount(target: str) -> None:
    """Take a mount away as soon as nobody uses it."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def _checked(result: int, path: str | None = None) -> int:
    if result >= 0:
        return result
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)
