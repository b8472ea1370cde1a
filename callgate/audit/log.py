"""The audit log of a process: what the router writes to.

`record` is for one line, `stage` and `flush` for all lines of a pass with one write(2). When
they return, the lines are in the kernel: killing the process loses none of them. If a line
cannot be written, `fail_closed` raises `AuditUnavailable` and leaves no trace of it, `drop`
counts it; either way the next line tries again, and the first that succeeds is preceded by a
record of how many failed.

Not for several threads at once; the router's loop owns it.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from callgate.audit.events import Event, begins_call, call_of, ends_call
from callgate.audit.files import load_key
from callgate.audit.index import MIN_BYTES, index_beside
from callgate.audit.recovery import recover_writers
from callgate.audit.retention import delete_old_segments
from callgate.audit.sinks import Pump, Sink, built_in_sinks, close_pumps
from callgate.errors import AuditUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import Thread

    from callgate.audit.writer import Writer
    from callgate.model import AuditSpec

_RETENTION_NS = 3600 * 1_000_000_000
"""How often a process that does not rotate looks for segments that are too old."""


class Checkpoint(TypedDict):
    """How far a writer's log goes; kept elsewhere, it is an anchor for `verify`."""

    writer: str
    seq: int
    hash: str


class AuditLog:
    """A chained log; make it with `open`."""

    __slots__ = (
        "_clock",
        "_failures",
        "_indexer",
        "_pumps",
        "_retain_at_ns",
        "_root",
        "_spec",
        "_staged",
        "_staged_ends",
        "_told_ns",
        "_unbegun",
        "_writer",
        "broken",
        "closed",
        "dropped",
        "flushed",
        "key",
        "policy",
        "recovered",
    )

    def __init__(
        self,
        spec: AuditSpec,
        writer: Writer,
        *,
        policy: str,
        key: bytes,
        pumps: Sequence[Pump],
        clock: Callable[[], int],
    ) -> None:
        self.key = key
        """For the pseudonyms of callers that the policy does not name."""
        self.policy = policy
        self.dropped = 0
        """Records that `drop` mode let go."""
        self.flushed = 0
        """Segments that were deleted for space before their time was over."""
        self.closed = False
        """Whether nothing is written here any more: then every record is refused."""
        self.recovered = 0
        self.broken: tuple[str, ...] = ()
        self._spec = spec
        self._root = Path(spec.path)
        self._writer = writer
        self._pumps = tuple(pumps)
        self._clock = clock
        self._failures = 0
        self._retain_at_ns = clock() + _RETENTION_NS
        self._staged: list[str] = []
        """Bodies: they are sealed together, when they are written."""
        self._staged_ends: dict[str, str | None] = {}
        """Calls that they end, each with the body that it began with: should they fail, it is open
        still. To the writer staged lines count as written, because nothing happens before they are.
        """
        self._unbegun: set[str] = set()
        """Calls whose begin `drop` mode let go, and whose end may come."""
        self._told_ns = 0
        self._indexer: Thread | None = None

    @classmethod
    def open(
        cls,
        spec: AuditSpec,
        *,
        policy: str,
        sinks: Iterable[Sink] = (),
        clock: Callable[[], int] = time.time_ns,
    ) -> AuditLog:
        """Recover what other processes left, and begin to write. Blocks; raises `OSError`."""
        root = Path(spec.path)
        key = load_key(root)
        adopted = recover_writers(root, policy=policy, clock=clock)
        writer = adopted.writer
        try:
            number = writer.number
            if writer.needs_repair:
                writer.repair()
            if writer.number == number:
                writer.mark("audit.started")
            for name in adopted.broken:
                writer.append(Event(event="audit.recovered", code="audit.broken", segment=name))
        except OSError:
            writer.close(clean=False)
            raise
        pumps = [Pump(sink) for sink in (*built_in_sinks(spec), *sinks)]
        log = cls(spec, writer, policy=policy, key=key, pumps=pumps, clock=clock)
        log.recovered = adopted.recovered
        log.broken = adopted.broken
        log._retain()
        return log

    def record(self, body: str, opens: int = 0, call: str | None = None) -> None:
        """Write one line now. `opens` is +1 for an admitted call, -1 for its end, else 0.

        `call` is the id of that call, for who has it at hand: the body has it, too.
        """
        writer = self._writer
        if self._staged or writer.needs_repair:
            self.stage(body, opens, call)
            self.flush()
            return
        line = writer.chain.seal(body, self._clock())
        try:
            writer.commit(line, opens)
        except OSError as error:
            self._failed(error, [body])
            return
        if opens > 0:
            writer.open[call or call_of(body)] = body
        elif opens:
            if call is None:
                call = call_of(body)
            writer.open.pop(call, None)
            if self._unbegun:
                self._unbegun.discard(call)
        if self._pumps:
            self._copy([line])
        if writer.size >= self._spec.rotate_bytes:
            self._rotate()

    def stage(self, body: str, opens: int = 0, call: str | None = None) -> None:
        """Put a line into the next `flush`; the arguments are those of `record`."""
        if self.closed:
            raise AuditUnavailable(tool_ran=opens < 0)
        staged, writer = self._staged, self._writer
        if not staged and writer.needs_repair:
            try:
                writer.repair()
            except OSError as error:
                self._failed(error, [body])
                return
        staged.append(body)
        if opens > 0:
            writer.open[call or call_of(body)] = body
        elif opens:
            if call is None:
                call = call_of(body)
            self._staged_ends[call] = writer.open.pop(call, None)

    def flush(self) -> None:
        """Write all staged lines with one write(2): all or none."""
        staged = self._staged
        if not staged:
            return
        self._staged = []
        writer, ends = self._writer, self._staged_ends
        lines = writer.chain.seal_all(staged, self._clock())
        try:
            writer.commit("".join(lines).encode())
        except OSError as error:
            self._failed(error, staged)
            return
        if ends:
            if self._unbegun:
                self._unbegun.difference_update(ends)
            ends.clear()
        if self._pumps:
            self._copy([line.encode() for line in lines])
        if writer.size >= self._spec.rotate_bytes:
            self._rotate()

    def write(self, event: Event) -> None:
        """Write one event of a cold path."""
        self.record(event.body())
        if self._clock() >= self._retain_at_ns:
            self._retain()

    def wall_us(self, monotonic_ns: int) -> int:
        """Return a moment of the monotonic clock as microseconds of the wall's, as records have."""
        return (monotonic_ns + self._writer.offset_ns) // 1000

    @property
    def has_staged(self) -> bool:
        """Whether lines wait for `flush`."""
        return bool(self._staged)

    @property
    def open_calls(self) -> int:
        """Admitted calls whose end may yet be written here."""
        writer = self._writer
        return len(writer.open) - len(writer.unended) + len(self._unbegun)

    def checkpoint(self) -> Checkpoint:
        """How far the log goes: keep it elsewhere and give it to `verify` as an anchor."""
        chain = self._writer.chain
        return {"writer": self._writer.name, "seq": chain.seq, "hash": chain.hash.decode()}

    def snapshot(self) -> dict[str, Any]:
        """Counters of this process."""
        writer = self._writer
        return {
            "writer": writer.name,
            "seq": writer.chain.seq,
            "segment": writer.number,
            "segment_bytes": writer.size,
            "open_calls": len(writer.open) + len(self._unbegun),
            "failures": self._failures,
            "dropped": self.dropped,
            "flushed": self.flushed,
            "available": writer.gap is None,
            "recovered": self.recovered,
            "broken": list(self.broken),
            "sinks": {pump.name: pump.snapshot() for pump in self._pumps},
        }

    def close(self) -> None:
        """Write what is staged, mark the log as closed, release it; waits for no sink long."""
        if self.closed:
            return
        try:
            self.flush()
        finally:
            self.closed = True
            self._writer.close()
            close_pumps(self._pumps)

    def _copy(self, lines: list[bytes]) -> None:
        for pump in self._pumps:
            pump.offer(lines)

    def _failed(self, error: OSError, bodies: list[str]) -> None:
        """Count lines that were not written; undo what they were to the calls that are open."""
        writer = self._writer
        self._failures += 1
        lines = len(bodies)
        begun = {call_of(body) for body in bodies if begins_call(body)}
        ended = {call_of(body) for body in bodies if ends_call(body)}
        ends, self._staged_ends = self._staged_ends, {}
        writer.open.update({call: body for call, body in ends.items() if body is not None})
        for call in begun:
            writer.open.pop(call, None)
        # Calls that begin and end in these lines are nowhere on disk, and need no end there.
        writer.unended |= (ended - begun) & writer.open.keys()
        count = writer.gap[1] if writer.gap else 0
        if self._spec.fail_closed:
            writer.gap = "audit.unavailable", count + lines
            raise AuditUnavailable(tool_ran=bool(ended)) from error
        writer.gap = "audit.dropped", count + lines
        self.dropped += lines
        self._unbegun |= begun
        self._unbegun -= ended

    def _rotate(self) -> None:
        # Of a segment at most half is what was carried over, however many calls are open.
        writer = self._writer
        size, number = writer.size, writer.number
        if size >= 2 * writer.carried_bytes and writer.rotate():
            if size >= MIN_BYTES and (self._indexer is None or not self._indexer.is_alive()):
                self._indexer = index_beside(writer.directory, number, self.key)
            self._retain()

    def _retain(self) -> None:
        self._retain_at_ns = self._clock() + _RETENTION_NS
        with suppress(OSError):  # the next rotation tries again
            delete_old_segments(
                self._root,
                self._writer,
                self._spec,
                policy=self.policy,
                clock=self._clock,
                on_flushed=self._on_flushed,
            )

    def _on_flushed(self, segment: str) -> None:
        """Say that history goes before its time: at once, then at most once an hour."""
        self.flushed += 1
        now_ns = self._clock()
        if now_ns < self._told_ns:
            return
        self._told_ns = now_ns + _RETENTION_NS
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or None
            sys.stderr.write(
                f"callgate: the audit is over `max_bytes`: {segment} is deleted before `keep` is "
                f"over ({self.flushed} so far)\n"
            )
