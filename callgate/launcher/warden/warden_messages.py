"""How callgate and a warden talk: a length, then one marshalled dictionary; files go beside.

Only the standard library's C modules are imported here, and only what the interpreter loads
anyway: the warden pays for every import at every launch. `marshal` and not JSON for the
same reason. Both ends are the same interpreter and trust each other: they are one program.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

HEADER_BYTES = 4
FD_BYTES = 4
"""Of a C int, on every platform that has descriptors."""
MAX_FDS = 32
"""A job has at most a dozen: three for stdio, one for each controller, a few for bwrap."""
READ_BYTES = 64 * 1024


def frame(message: Mapping[str, Any]) -> bytes:
    """Return the message as it goes over the socket."""
    data = marshal.dumps(dict(message))
    return len(data).to_bytes(HEADER_BYTES, "little") + data


def pack_fds(fds: Sequence[int]) -> bytes:
    """Return the control message's body for `SCM_RIGHTS`."""
    return b"".join(fd.to_bytes(FD_BYTES, sys.byteorder) for fd in fds)


def unpack_fds(data: bytes) -> list[int]:
    """Return the descriptors in a control message's body."""
    whole = len(data) // FD_BYTES * FD_BYTES
    return [
        int.from_bytes(data[at : at + FD_BYTES], sys.byteorder) for at in range(0, whole, FD_BYTES)
    ]


class MessageDecoder:
    """Bytes in, messages out."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message that is complete now."""
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(self._data[:HEADER_BYTES], "little")
            if len(self._data) < end:
                return
            body, self._data = self._data[HEADER_BYTES:end], self._data[end:]
            yield marshal.loads(body)  # noqa: S302  # the two ends are one program
