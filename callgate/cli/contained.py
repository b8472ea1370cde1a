"""One contained command from its start to an answer that a script can read.

The command's output passes through as it comes, or is kept for the answer up to a bound. Its input
is ours, unless that is a terminal. A signal to us is a cancel: the command is asked to end, and
killed at the second signal or when its grace has passed. How it ended is said in one line on
stderr, unless it ended well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec

from callgate.cli import say
from callgate.cli.exec_verdict import verdict
from callgate.cli.pass_through import PassThrough
from callgate.cli.run_record import RunRecord
from callgate.launcher.capture import FirstBytes, drain
from callgate.launcher.plugins import Launchers
from callgate.launcher.protocol import LaunchRefused, gaps_text
from callgate.model import RequestIds
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from callgate.launcher.protocol import Run, Stopped
    from callgate.model import LaunchSpec, StopReason

_READ_BYTES = 64 * 1024
_MS_NS = 1_000_000
DRAIN_S = 5.0
"""For the last output after the end: everything is in the pipes already."""

ErrorClass = Literal["TIMEOUT", "CANCELLED", "CAPABILITY_DENIED", "LIMIT_EXCEEDED"]

_CLASSES: dict[StopReason, ErrorClass] = {
    "wall_time_limit": "TIMEOUT",
    "stop_requested": "CANCELLED",
    "oom": "LIMIT_EXCEEDED",
    "memory_limit": "LIMIT_EXCEEDED",
    "cpu_time_limit": "LIMIT_EXCEEDED",
    "pids_limit": "LIMIT_EXCEEDED",
    "disk_limit": "LIMIT_EXCEEDED",
    "file_count_limit": "LIMIT_EXCEEDED",
    "connections_limit": "LIMIT_EXCEEDED",
}


TIMED_OUT, REFUSED, NOT_EXECUTABLE, NOT_FOUND, CANCELLED, KILLED = 124, 125, 126, 127, 130, 137
"""Our own exit codes, those of `timeout`, `docker run` and the shells."""
SIGNALLED = 128
"""Plus the signal's number: the exit code for a command that a signal ended."""


class Output(NamedTuple):
    """What becomes of the command's output."""

    keep: bool = False
    """For the answer; else it passes through as it comes."""
    max_stdout: int | None = None
    max_stderr: int | None = None


class Truncated(msgspec.Struct, frozen=True):
    """Which stream lost its end."""

    stdout: bool = False
    stderr: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    exit_code: int | None
    """The command's own."""
    status: int
    """Ours."""
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: Truncated = Truncated()
    error_class: ErrorClass | None = None
    stop_reason: str | None = None
    limit: dict[str, Any] | None = None
    """The limit that ended it."""
    execution_time_ms: int | None = None
    usage: dict[str, Any] = {}
    effective: dict[str, Any] = {}


def size_of(command: Iterable[str]) -> int:
    """Return the bytes of a command, counted as the kernel counts them."""
    return sum(len(os.fsencode(word)) + 1 for word in command)


TOO_LONG = Answer(None, NOT_EXECUTABLE, error_class="LIMIT_EXCEEDED")
INTERRUPTED = Answer(None, CANCELLED, error_class="CANCELLED", stop_reason="stop_requested")


async def execute(spec: LaunchSpec, output: Output) -> Answer:
    """Run the command to its end, whatever that is."""
    secrets = [
        os.environb[name] for name in map(os.fsencode, spec.env.secret) if name in os.environb
    ]
    signals = Signals()
    async with launched(spec, signals) as started:
        if isinstance(started, Answer):
            return started
        if output.keep:
            return await _keep(started, spec, output, secrets)
        began_ns = time.monotonic_ns()
        stdout = PassThrough(started.stdout, 1, secrets=secrets, max_bytes=output.max_stdout)
        stderr = PassThrough(started.stderr, 2, secrets=secrets, max_bytes=output.max_stderr)
        feed(started.stdin)
        stopped = await recorded(started, spec)
        elapsed_ms = _elapsed_ms(began_ns)
        await signals.interrupts(stderr.finish())
        answer = _answer(started, stopped, elapsed_ms)  # behind the command's own words
        await signals.interrupts(stdout.finish())
    cut = Truncated(stdout.truncated, stderr.truncated)
    return msgspec.structs.replace(answer, truncated=cut)


async def _keep(run: Run, spec: LaunchSpec, output: Output, secrets: list[bytes]) -> Answer:
    began_ns = time.monotonic_ns()
    stdout, stderr = (
        FirstBytes(sys.maxsize if most is None else most)
        for most in (output.max_stdout, output.max_stderr)
    )
    readers = [
        await drain(run.stdout, stdout, secrets),
        await drain(run.stderr, stderr, secrets),
    ]
    feed(run.stdin)
    stopped = await recorded(run, spec)
    elapsed_ms = _elapsed_ms(began_ns)
    for reader in readers:
        await reader.finish(DRAIN_S)
    return msgspec.structs.replace(
        _answer(run, stopped, elapsed_ms),
        stdout=stdout.text(),
        stderr=stderr.text(),
        truncated=Truncated(stdout.truncated, stderr.truncated),
    )


async def interact(spec: LaunchSpec) -> Answer:
    """Run the command with our terminal as its own; Ctrl-C is for the command, not for us."""
    from callgate.cli.terminal import Joined  # noqa: PLC0415  # not on Windows

    async with launched(spec, Signals()) as started:
        if isinstance(started, Answer):
            return started
        began_ns = time.monotonic_ns()
        async with Joined(started.stdin):
            stopped = await recorded(started, spec)
        return _answer(started, stopped, _elapsed_ms(began_ns))


@asynccontextmanager
async def launched(spec: LaunchSpec, signals: Signals) -> AsyncIterator[Run | Answer]:
    """The run, or why there is none; nothing of it is left behind."""
    launcher = Launchers()
    run_id = RequestIds(time.time_ns() // _MS_NS, os.urandom(4)).next()
    try:
        with signals:
            try:
                run = await launcher.launch(spec, run_id=run_id)
            except LaunchRefused as refused:
                answer = refusal(refused, spec)
                say.remark(f"callgate: {_why(refused, answer, spec)}")
                yield answer
                return
            except asyncio.CancelledError:
                if not signals.took_cancel():
                    raise
                yield INTERRUPTED
                return
            signals.reach(run)
            yield run
    finally:
        await launcher.aclose()


def refusal(refused: LaunchRefused, spec: LaunchSpec) -> Answer:
    """A host that cannot, or a command that is not there, which is no fault of the host."""
    if refused.stage in ("command", "exec"):
        there = refused.stage == "exec" or _is_there(spec.command[0], spec.cwd)
        status = NOT_EXECUTABLE if there else NOT_FOUND
        return Answer(None, status, stop_reason="failed_to_start")
    return Answer(
        None,
        REFUSED,
        error_class="CAPABILITY_DENIED",
        stop_reason="failed_to_start",
        effective={name: {"status": "absent", "reason": why} for name, why in refused.gaps.items()},
    )


def _why(refused: LaunchRefused, answer: Answer, spec: LaunchSpec) -> str:
    program = quoted(spec.command[0])
    if answer.status == NOT_FOUND:
        return f"{program}: not found; nothing ran"
    if answer.status == NOT_EXECUTABLE:
        return f"{program}: cannot be executed; nothing ran: {quoted(gaps_text(refused.gaps))}"
    return f"{quoted(str(refused))}; callgate doctor says what this host can enforce"


def _is_there(word: str, cwd: str | None) -> bool:
    """Return True if a command that cannot be executed exists nevertheless."""
    if "/" in word:
        return os.path.lexists(Path(cwd or Path.cwd()) / word)
    return any(os.path.lexists(Path(place) / word) for place in os.get_exec_path())


def _answer(run: Run, stopped: Stopped, elapsed_ms: int) -> Answer:
    line = verdict(stopped, elapsed_ms)
    if line is not None:
        say.remark(f"callgate: {line}")
    return Answer(
        exit_code=stopped.exit_code,
        status=_status(stopped),
        signal=stopped.signal,
        error_class=_CLASSES.get(stopped.reason),
        stop_reason=stopped.reason,
        limit=None if stopped.limit is None else msgspec.to_builtins(stopped.limit),
        execution_time_ms=elapsed_ms,
        usage=msgspec.to_builtins(stopped.usage),
        effective=msgspec.to_builtins(dict(run.effective)),
    )


def _status(stopped: Stopped) -> int:
    """Return our own exit code for a command that ran."""
    match _CLASSES.get(stopped.reason):
        case "TIMEOUT":
            return TIMED_OUT
        case "CANCELLED":
            return CANCELLED
        case "LIMIT_EXCEEDED":
            return stopped.exit_code or KILLED  # a command may notice, and end by itself
    if stopped.exit_code is None:
        return KILLED if stopped.signal is None else SIGNALLED + stopped.signal
    return stopped.exit_code


def _elapsed_ms(began_ns: int) -> int:
    return (time.monotonic_ns() - began_ns) // _MS_NS


class Signals:
    """Inside, SIGINT and SIGTERM ask the run to end; the second one ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._run: Run | None = None
        self._stopping: asyncio.Task[Stopped] | None = None
        self.asked = False
        self._asked_again = asyncio.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)

    def reach(self, run: Run) -> None:
        """From now on it is this run that is asked; until now it was the launch."""
        self._run = run

    def took_cancel(self) -> bool:
        """Whether the launch was cancelled by a signal; if so, that is dealt with."""
        if self.asked and self._task is not None:
            self._task.uncancel()
        return self.asked

    async def interrupts(self, copying: Coroutine[Any, Any, None]) -> None:
        """Wait for output to be copied, but not after a signal that comes from now on."""
        self._asked_again.clear()
        tasks = [asyncio.ensure_future(copying), asyncio.ensure_future(self._asked_again.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _ask(self) -> None:
        self._asked_again.set()
        if self._run is None:
            if self._task is not None and not self.asked:
                self._task.cancel()
        elif self._stopping is None:
            self._stopping = self._loop.create_task(self._run.stop("stop_requested"))
        else:
            self._run.kill("stop_requested")
        self.asked = True


async def recorded(run: Run, spec: LaunchSpec) -> Stopped:
    """Wait for the end of a run; record its start and its end."""
    record = await RunRecord.begin(run, spec.agent)
    stopped = await run.wait()
    if stopped.state == "paused":
        # Nobody will come back for it: this command is all that there is.
        await run.discard()
        stopped = msgspec.structs.replace(stopped, state="crashed")
    await record.end(stopped)
    return stopped


def feed(stdin: int) -> None:
    """Hand our input on and close `stdin` at its end; a terminal is not handed on.

    By a thread: our input is shared with whoever started us and must not be made
    non-blocking. It ends with the program, wherever it waits.
    """
    if os.isatty(0):
        os.close(stdin)
        return
    threading.Thread(target=_copy, args=(stdin,), name="callgate-stdin", daemon=True).start()


def _copy(stdin: int) -> None:
    os.set_blocking(stdin, True)
    with suppress(OSError), os.fdopen(stdin, "wb", buffering=0) as pipe:
        while data := os.read(0, _READ_BYTES):
            while data:
                data = data[pipe.write(data) :]
