"""Follow what is being written: new records of every writer, over rotation and new writers.

A writer's place is a segment and how many bytes of whole lines of it were read. A record that was
written is read once: the rest of a segment is read before the next one is begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from callgate.audit.chain import MAX_LINE_BYTES
from callgate.audit.files import open_to_read, segment_path, segments, writers
from callgate.past.rows import decode_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from callgate.past.reading import Source
    from callgate.past.rows import Query, Row


@dataclass(slots=True)
class _Place:
    number: int
    bytes: int


class Follower:
    """Yields what was written since it was asked last."""

    def __init__(self, root: Path, read: list[Source]) -> None:
        """Go on behind what was `read`: the segments of a `PastLog`, after they were read."""
        self._root = root
        self._places: dict[str, _Place] = {}
        for source in read:
            if source.last:
                place = _Place(source.number, source.whole_bytes)
                if source.index is not None:
                    place.bytes = source.size
                self._places[source.directory.name] = place

    def new(self, query: Query) -> Iterator[Row]:
        """Yield each new record that the query wants; raises `OSError` if the path is gone."""
        there = writers(self._root)
        for name in self._places.keys() - {directory.name for directory in there}:
            del self._places[name]
        for directory in there:
            place = self._places.setdefault(directory.name, _Place(0, 0))
            for number in segments(directory):
                if number < place.number:
                    continue
                if number > place.number:
                    place.number, place.bytes = number, 0
                yield from self._rest(directory, place, query)

    def _rest(self, directory: Path, place: _Place, query: Query) -> Iterator[Row]:
        try:
            with open_to_read(segment_path(directory, place.number)) as stream:
                size = stream.seek(0, 2)
                place.bytes = min(place.bytes, size)  # its writer may have cut a failed write
                stream.seek(place.bytes)
                while line := stream.readline(MAX_LINE_BYTES + 1):
                    if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                        return  # the rest of the line is not there yet
                    place.bytes += len(line)
                    try:
                        row = decode_row(line)
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        continue
                    if query.wants(row):
                        yield row
        except FileNotFoundError:  # retention was quicker
            return
