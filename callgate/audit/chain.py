"""The hash chain: each line's `hash` covers the previous hash and the line before it.

Pure; the caller passes the wall clock. A line is

    {"v":2,"seq":N,"ts":"2026-11-18T08:23:28.123456Z",<body>,"hash":"<64 hex>"}

and its hash is SHA-256 over the previous line's hash, as 64 ASCII hex digits, followed by the
line's bytes up to but excluding `,"hash":"`. What follows those bytes is fixed by the hash, so
no byte of a line is left uncovered.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

GENESIS: Final = b"0" * 64
"""The hash before the first line of a writer."""

MAX_LINE_BYTES: Final = 16 * 1024
"""Seven names of 256 characters, each escaped to six bytes, and the rest, with room."""

_MARK: Final = b',"hash":"'
_END: Final = b'"}\n'
_TAIL_BYTES: Final = len(_MARK) + 64 + len(_END)
_HASH_AT: Final = -64 - len(_END)
_SECOND_NS: Final = 1_000_000_000


class Chain:
    """Where a chain stands: the number and the hash of its last line."""

    __slots__ = ("_second_ns", "_stamp", "hash", "second", "seq")

    def __init__(self, seq: int = 0, digest: bytes = GENESIS) -> None:
        self.seq = seq
        self.hash = digest
        self.second = -1
        """Of the last line's time stamp."""
        self._second_ns = -_SECOND_NS
        self._stamp = ""

    def seal(self, body: str, wall_ns: int) -> bytes:
        """The next line; from here on it is the chain's last."""
        ns = wall_ns - self._second_ns
        if not 0 <= ns < _SECOND_NS:
            ns = self._turn_to(wall_ns)
        self.seq = seq = self.seq + 1
        micros = str(ns // 1000 + 1_000_000)[1:]
        text = f'{{"v":2,"seq":{seq},"ts":"{self._stamp}{micros}Z",{body}'.encode()
        self.hash = digest = sha256(self.hash + text).hexdigest().encode()
        return text + _MARK + digest + _END

    def seal_all(self, bodies: list[str], wall_ns: int) -> list[str]:
        """The next lines, all of one moment: half of what as many times `seal` costs."""
        ns = wall_ns - self._second_ns
        if not 0 <= ns < _SECOND_NS:
            ns = self._turn_to(wall_ns)
        stamp = f',"ts":"{self._stamp}{str(ns // 1000 + 1_000_000)[1:]}Z",'
        seq, digest = self.seq, self.hash.decode()
        lines: list[str] = []
        for body in bodies:
            seq += 1
            text = f'{{"v":2,"seq":{seq}{stamp}{body}'
            digest = sha256(f"{digest}{text}".encode()).hexdigest()
            lines.append(f'{text},"hash":"{digest}"}}\n')
        self.seq, self.hash = seq, digest.encode()
        return lines

    def _turn_to(self, wall_ns: int) -> int:
        """Begin another second; how much of it has passed.

        Formatting a date costs more than the rest of a line, so it is done once a second.
        """
        self.second, ns = divmod(wall_ns, _SECOND_NS)
        self._second_ns = wall_ns - ns
        self._stamp = datetime.fromtimestamp(self.second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return ns

    def rewind(self, seq: int, digest: bytes) -> None:
        """Forget the lines after `seq`: they were not written."""
        self.seq = seq
        self.hash = digest


def body_of(line: bytes) -> str:
    """Return a line's body: what stands between its time stamp and its hash."""
    return line[line.index(b'Z",') + 3 : -_TAIL_BYTES].decode()


def stated_hash(line: bytes) -> bytes | None:
    """The hash that a line claims, or None if it does not end as a line does."""
    if line[-_TAIL_BYTES:_HASH_AT] != _MARK or not line.endswith(_END):
        return None
    return line[_HASH_AT : -len(_END)]


def expected_hash(line: bytes, previous: bytes) -> bytes:
    """The hash that a line must have after `previous`."""
    return sha256(previous + line[:-_TAIL_BYTES]).hexdigest().encode()


def wall_ns(ts: str) -> int:
    """A line's time stamp as nanoseconds of the wall clock."""
    moment = datetime.fromisoformat(ts)
    since = moment - datetime.fromtimestamp(0, UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
