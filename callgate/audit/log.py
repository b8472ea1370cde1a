"""The audit log of a process: what the router writes to.

`record` is for one line, `stage` and `flush` for all lines of a pass with one write(2). When
they return, the lines are in the kernel: killing the process loses none of them. If a line
cannot be written, `fail_closed` raises `AuditUnavailable` and leaves no trace of it, `drop`
counts it; either way the next line tries again, and the first that succeeds is preceded by a
record of how many failed.

Not for several threads at once; the router's loop owns it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from callgate.audit.events import Event
from callgate.audit.files import load_key
from callgate.audit.recovery import adopt
from callgate.audit.retention import enforce
from callgate.audit.sinks import Pump, Sink, built_in_sinks, close_pumps
from callgate.errors import AuditUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        "_pumps",
        "_retain_at_ns",
        "_root",
        "_spec",
        "_staged",
        "_staged_opens",
        "_staged_ups",
        "_unended",
        "_writer",
        "broken",
        "dropped",
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
        self._staged_opens = 0
        self._staged_ups = 0
        self._unended = 0
        """Ends that could not be written: the next start does that."""

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
        adopted = adopt(root, policy=policy, clock=clock)
        writer = adopted.writer
        try:
            number = writer.number
            if writer.trouble:
                writer.mend()
            if writer.number == number:
                writer.mark("audit.started")
            for name in adopted.broken:
                writer.append(Event(event="audit.recovered", code="audit.broken", segment=name), 0)
        except OSError:
            writer.close(clean=False)
            raise
        pumps = [Pump(sink) for sink in (*built_in_sinks(spec), *sinks)]
        log = cls(spec, writer, policy=policy, key=key, pumps=pumps, clock=clock)
        log.recovered = adopted.recovered
        log.broken = adopted.broken
        log._retain()
        return log

    def record(self, body: str, opens: int = 0) -> None:
        """Write one line now. `opens` is +1 for an admitted call, -1 for its end, else 0."""
        writer = self._writer
        if self._staged or writer.trouble:
            self.stage(body, opens)
            self.flush()
            return
        line = writer.chain.seal(body, self._clock())
        try:
            writer.commit(line, writer.open_calls + opens)
        except OSError as error:
            self._failed(error, 1, max(opens, 0), max(-opens, 0))
            return
        if self._pumps:
            self._copy([line])
        if writer.size >= self._spec.rotate_bytes:
            self._rotate()

    def stage(self, body: str, opens: int = 0) -> None:
        """Put a line into the next `flush`."""
        staged = self._staged
        if not staged and self._writer.trouble:
            try:
                self._writer.mend()
            except OSError as error:
                self._failed(error, 1, max(opens, 0), max(-opens, 0))
                return
        staged.append(body)
        self._staged_opens += opens
        if opens > 0:
            self._staged_ups += opens

    def flush(self) -> None:
        """Write all staged lines with one write(2): all or none."""
        staged = self._staged
        if not staged:
            return
        opens, ups = self._staged_opens, self._staged_ups
        self._staged = []
        self._staged_opens = self._staged_ups = 0
        writer = self._writer
        lines = writer.chain.seal_all(staged, self._clock())
        try:
            writer.commit("".join(lines).encode(), writer.open_calls + opens)
        except OSError as error:
            self._failed(error, len(staged), ups, ups - opens)
            return
        if self._pumps:
            self._copy([line.encode() for line in lines])
        if writer.size >= self._spec.rotate_bytes:
            self._rotate()

    def write(self, event: Event) -> None:
        """Write one event of a cold path."""
        self.record(event.body())
        if self._clock() >= self._retain_at_ns:
            self._retain()

    @property
    def has_staged(self) -> bool:
        """Whether lines wait for `flush`."""
        return bool(self._staged)

    @property
    def open_calls(self) -> int:
        """Admitted calls whose end may yet be written here."""
        return self._writer.open_calls - self._unended

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
            "open_calls": writer.open_calls,
            "failures": self._failures,
            "dropped": self.dropped,
            "available": writer.gap is None,
            "recovered": self.recovered,
            "broken": list(self.broken),
            "sinks": {pump.name: pump.snapshot() for pump in self._pumps},
        }

    def close(self) -> None:
        """Write what is staged, mark the log as closed, release it; waits for no sink long."""
        try:
            self.flush()
        finally:
            self._writer.close()
            close_pumps(self._pumps)

    def _copy(self, lines: list[bytes]) -> None:
        for pump in self._pumps:
            pump.offer(lines)

    def _failed(self, error: OSError, lines: int, ups: int, downs: int) -> None:
        """`lines` were not written, among them the start of `ups` calls and the end of `downs`."""
        writer = self._writer
        self._failures += 1
        count = writer.gap[1] if writer.gap else 0
        if self._spec.fail_closed:
            writer.gap = "audit.unavailable", count + lines
            # Some may have begun and ended among these lines, so at least so many had begun before.
            self._unended += max(0, downs - ups)
            raise AuditUnavailable(tool_ran=downs > 0) from error
        writer.gap = "audit.dropped", count + lines
        self.dropped += lines
        # Ends of these calls may yet be written. Too high a count makes a recovery read more,
        # too low a one would make it miss a call.
        writer.open_calls += ups
        self._unended += downs

    def _rotate(self) -> None:
        if self._writer.rotate():
            self._retain()

    def _retain(self) -> None:
        self._retain_at_ns = self._clock() + _RETENTION_NS
        with suppress(OSError):  # the next rotation tries again
            enforce(self._root, self._writer, self._spec, policy=self.policy, clock=self._clock)
