"""An index beside each segment, so that a question about the past reads few of them.

`00000007.index` says of `00000007.jsonl` between which times and request ids its records are, and
how many there are of each event. An index is never trusted over the chain. It is used only if

- its message authentication code, made with the install's key, is right: whoever cannot read the
  key cannot write an index;
- the segment still has the size, and its last line the hash, that the index was made of.

Else it is made again from the segment. What it cannot see is a segment that was changed in its
middle: that is `verify`'s part, and an answer says how much of what it read was verified.

A segment is indexed by a thread of the process that closed it, or by the first reader.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from callgate.audit.chain import stated_hash
from callgate.audit.files import KEY_BYTES, last_line, open_to_read, segment_path
from callgate.files import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIN_BYTES: Final = 1 << 20
"""A smaller segment is read as quickly as it is looked up."""
MAX_INDEX_BYTES: Final = 64 * 1024
"""Some 40 events with a number each, and a few members: under 4 KiB."""
_BLOCK_BYTES: Final = 256 * 1024
"""About a millisecond of work: so long may calls wait for the thread that indexes."""
_REST_S: Final = 0.002
_PURPOSE: Final = b"callgate index 1\n"
_MAC_BYTES: Final = 64

_find_records: Final = re.compile(
    rb'^\{"v":[12],"seq":[0-9]+,"ts":"([0-9T:.-]{26}Z)","event":"([a-z_.]+)"'
    rb'(?:[^\n]*?"request_id":"([0-9a-f-]{36})")?',
    re.MULTILINE,
).findall
"""In a JSON string a quote is escaped, so that a member's name matches nowhere but at a member."""


class SegmentIndex(msgspec.Struct, frozen=True):
    """What one segment has in it."""

    segment: str
    """`<writer>/<number>`: the index of another segment says nothing of this one."""
    size: int
    hash: str
    """Of the last line."""
    lines: int
    first_ts: str
    last_ts: str
    """The earliest and the latest time stamp: a clock may have been set back."""
    first_id: str | None
    last_id: str | None
    events: dict[str, int]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(SegmentIndex).decode


def index_path(directory: Path, number: int) -> Path:
    """Return the file of a segment's index."""
    return directory / f"{number:08d}.index"


def load_index_key(root: Path) -> bytes | None:
    """Return the key that indexes are authenticated with; None if there is none of ours."""
    with suppress(OSError):
        key = read_file(root / "key", KEY_BYTES)
        return key if len(key) == KEY_BYTES else None
    return None


def read_index(directory: Path, number: int, key: bytes) -> SegmentIndex | None:
    """Return the index of a segment, or None if there is none that can be trusted."""
    try:
        data = read_file(index_path(directory, number), MAX_INDEX_BYTES)
        mac, text = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac_of(text, key)):
            return None
        index = _decode(text)
        file = segment_path(directory, number)
        if index.segment != f"{directory.name}/{number}" or index.size != file.stat().st_size:
            return None
        if stated_hash(last_line(file)) != index.hash.encode():
            return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return index


def write_index(directory: Path, index: SegmentIndex, key: bytes) -> None:
    """Write an index beside its segment; raises `OSError`."""
    text = _encode(index)
    number = int(index.segment.rpartition("/")[2])
    replace_file(index_path(directory, number), _mac_of(text, key) + text)


def make_index(
    directory: Path, number: int, rest: Callable[[], None] = lambda: None
) -> SegmentIndex | None:
    """Return the index of a closed segment, or None if some of it is no line of ours.

    `rest` is called between two blocks. Raises `OSError`.
    """
    size = lines = 0
    first_ts, last_ts = "~", ""
    first_id, last_id = "~", ""
    events: Counter[bytes] = Counter()
    digest: bytes | None = None
    tail = b""
    with open_to_read(segment_path(directory, number)) as stream:
        while block := stream.read(_BLOCK_BYTES):
            size += len(block)
            block = tail + block
            end = block.rfind(b"\n") + 1
            block, tail = block[:end], block[end:]
            if len(tail) > _BLOCK_BYTES:
                return None
            found = _find_records(block)
            if len(found) != block.count(b"\n"):
                return None
            lines += len(found)
            events.update(event for _, event, _ in found)
            stamps = [stamp for stamp, _, _ in found]
            if stamps:
                first_ts = min(first_ts, min(stamps).decode())
                last_ts = max(last_ts, max(stamps).decode())
            ids = [call for _, _, call in found if call]
            if ids:
                first_id = min(first_id, min(ids).decode())
                last_id = max(last_id, max(ids).decode())
            digest = stated_hash(block[block.rfind(b"\n", 0, -1) + 1 :])
            rest()
    if tail or not lines or digest is None:
        return None
    return SegmentIndex(
        segment=f"{directory.name}/{number}",
        size=size,
        hash=digest.decode(),
        lines=lines,
        first_ts=first_ts,
        last_ts=last_ts,
        first_id=first_id if last_id else None,
        last_id=last_id or None,
        events={event.decode(): count for event, count in events.items()},
    )


def index_beside(directory: Path, number: int, key: bytes) -> threading.Thread:
    """Index a segment in a thread that leaves the processor to calls; return the thread.

    If it fails, or the process ends meanwhile, there is no index, and the first reader makes one.
    """

    def run() -> None:
        with suppress(OSError):
            index = make_index(directory, number, lambda: time.sleep(_REST_S))
            if index is not None:
                write_index(directory, index, key)

    thread = threading.Thread(target=run, name="callgate-index", daemon=True)
    thread.start()
    return thread


def _mac_of(text: bytes, key: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + text, sha256).hexdigest().encode()
