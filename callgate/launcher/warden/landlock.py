"""Landlock: a second wall that a process builds around itself, inside of the sandbox.

It has to be inside: a process with a landlock domain may not mount, so bwrap could not work
after it. Whatever is mounted read-only is read-only twice then, and TCP ports, abstract
sockets and signals, which mounts know nothing of, have rules too. UDP has none.

Stdlib only, and nothing of ours but `libc`: this runs in the sandbox, where callgate is not.
"""

from __future__ import annotations

import os
import struct

from callgate.launcher.warden.libc import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The same on every architecture, as for all system calls since 5.1.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE = 1 << 0
_READ = _EXECUTE | 1 << 2 | 1 << 3
"""Execute a file, read a file, list a directory."""
_WRITE_FILE = 1 << 1
_WRITE = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
"""Write, remove both kinds, make directories, files, sockets, pipes and links."""
_DEVICES = 1 << 6 | 1 << 11
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_SOCKETS = 1 << 16
"""Connect to a socket that has a path and was made outside of this wall."""
_SINCE = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL), (9, _SOCKETS))
_FILE_ONLY = 1 << 0 | _WRITE_FILE | 1 << 2 | _TRUNCATE | _IOCTL | _SOCKETS
"""What a rule about something that is not a directory may speak of."""
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPED = 3
"""Abstract sockets and signals."""
_ANY_FREE_PORT = 0


def abi() -> int:
    """Return the kernel's version of landlock; 0 if there is none."""
    try:
        return call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(
    version: int,
    writable: Sequence[str],
    tcp: str,
    *,
    scoped: bool,
    sockets: Sequence[str] = (),
    programs: Sequence[str] | None = None,
) -> None:
    """Let everything be read and only these be written; for good, and for all children.

    `tcp` is `free`, `connect` (and listen where the kernel chooses the port) or `none`.
    `sockets` is where sockets of others may be connected to; one's own always may be.
    `programs` are the only files that may be executed then; None lets every file be.
    """
    files = _READ | _WRITE | _DEVICES
    for since, right in _SINCE:
        files |= right if version >= since else 0
    network = 0 if tcp == "free" else _BIND_TCP | _CONNECT_TCP if tcp == "none" else _BIND_TCP
    attributes = struct.pack("QQQ", files, network, _SCOPED if scoped else 0)
    ruleset = call(_CREATE_RULESET, attributes, len(attributes), 0)
    unlisted = 0 if programs is None else _EXECUTE
    _allow(ruleset, "/", _READ & ~unlisted)
    for path in writable:
        _allow(ruleset, path, files & ~_DEVICES & ~_SOCKETS & ~unlisted)
    for path in programs or ():
        _allow(ruleset, path, _EXECUTE)
    for path in sockets if files & _SOCKETS else ():
        _allow(ruleset, path, files & _SOCKETS)
    if tcp == "connect":
        rule = struct.pack("QQ", _BIND_TCP, _ANY_FREE_PORT)
        call(_ADD_RULE, ruleset, _NET_PORT, rule, 0)
    call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):  # noqa: PTH112  # no pathlib in the sandbox
            rights &= _FILE_ONLY
        call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
