"""One contained command from its start to an answer that a script can read.

The command's output is kept up to a bound and the rest is read and dropped. Its input is
ours, unless that is a terminal. A signal to us is a cancel: the command is asked to end, and
killed at the second signal or when its grace has passed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from callgate.cli import say
from callgate.cli.exec import AGENT
from callgate.cli.run_record import RunRecord
from callgate.launcher.capture import FirstBytes, drain
from callgate.launcher.limit_message import explain
from callgate.launcher.plugins import Launchers
from callgate.launcher.protocol import LaunchRefused
from callgate.model import RequestIds
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from callgate.launcher.protocol import Run, Stopped
    from callgate.model import LaunchSpec, StopReason

MAX_OUTPUT_BYTES = 1024 * 1024
"""Of stdout and of stderr each, as wasmsand has it."""
MAX_COMMAND_BYTES = 64 * 1024
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


class Truncated(msgspec.Struct, frozen=True):
    """Which stream lost its end."""

    stdout: bool = False
    stderr: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What is printed."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    truncated: Truncated = Truncated()
    error_class: ErrorClass | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] = {}
    effective: dict[str, Any] = {}

    def status(self) -> int:
        """Our own exit code."""
        match self.error_class:
            case "TIMEOUT":
                return 124
            case "CAPABILITY_DENIED":
                return 125
            case "CANCELLED":
                return 130
        return 0 if self.error_class is None and self.exit_code == 0 else 1


def too_long(command: Iterable[str]) -> bool:
    """Whether a command is over its bound, counted as the kernel counts it."""
    return sum(len(os.fsencode(word)) + 1 for word in command) > MAX_COMMAND_BYTES


INTERRUPTED = Answer(None, error_class="CANCELLED", stop_reason="stop_requested")


async def execute(spec: LaunchSpec) -> Answer:
    """Run the command to its end, whatever that is."""
    stdout, stderr = FirstBytes(MAX_OUTPUT_BYTES), FirstBytes(MAX_OUTPUT_BYTES)
    secrets = [
        os.environb[name] for name in map(os.fsencode, spec.env.secret) if name in os.environb
    ]
    async with launched(spec) as started:
        if isinstance(started, Answer):
            return started
        readers = [
            await drain(started.stdout, stdout, secrets),
            await drain(started.stderr, stderr, secrets),
        ]
        feed(started.stdin)
        stopped = await recorded(started, spec)
        for reader in readers:
            await reader.finish(DRAIN_S)
    answer = _answer(started, stopped)
    return msgspec.structs.replace(
        answer,
        stdout=stdout.text(),
        stderr=stderr.text(),
        truncated=Truncated(stdout.truncated, stderr.truncated),
    )


async def interact(spec: LaunchSpec) -> Answer:
    """Run the command with our terminal as its own; Ctrl-C is for the command, not for us."""
    from callgate.cli.terminal import Joined  # noqa: PLC0415  # not on Windows

    async with launched(spec) as started:
        if isinstance(started, Answer):
            return started
        async with Joined(started.stdin):
            stopped = await recorded(started, spec)
        return _answer(started, stopped)


@asynccontextmanager
async def launched(spec: LaunchSpec) -> AsyncIterator[Run | Answer]:
    """The run, or why there is none; nothing of it is left behind."""
    launcher = Launchers()
    run_id = RequestIds(time.time_ns() // _MS_NS, os.urandom(4)).next()
    try:
        with Signals() as signals:
            try:
                run = await launcher.launch(spec, run_id=run_id)
            except LaunchRefused as refused:
                say.remark(f"callgate: {quoted(str(refused))}")
                yield refusal(refused)
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


def refusal(refused: LaunchRefused) -> Answer:
    """A host that cannot, or a command that is not there, which is no fault of the host."""
    denied = refused.stage != "command"
    return Answer(
        None,
        error_class="CAPABILITY_DENIED" if denied else None,
        stop_reason="failed_to_start",
        effective={name: {"status": "absent", "reason": why} for name, why in refused.gaps.items()}
        if denied
        else {},
    )


def _answer(run: Run, stopped: Stopped) -> Answer:
    return Answer(
        exit_code=stopped.exit_code,
        error_class=_CLASSES.get(stopped.reason),
        stop_reason=stopped.reason,
        usage=msgspec.to_builtins(stopped.usage),
        effective=msgspec.to_builtins(dict(run.effective)),
    )


class Signals:
    """Inside, SIGINT and SIGTERM ask the run to end; the second one ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._run: Run | None = None
        self._stopping: asyncio.Task[Stopped] | None = None
        self.asked = False

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

    def _ask(self) -> None:
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
    message = explain(spec.agent, stopped, options=spec.agent == AGENT, spec=spec)
    if message is not None:
        say.remark(message)
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
