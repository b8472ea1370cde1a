"""callgate's side of a warden: start it, give it a job, hear how that ended.

Starting it is one vfork and exec (`subprocess` without anything that needs a fork): the
event loop is held for about a millisecond, however large this process is. Everything after
that is messages over a socket that the loop watches.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.launcher.host.lean_process import interpreter, stub
from callgate.launcher.warden.warden_messages import MAX_FDS, READ_BYTES, MessageDecoder, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

START_TIMEOUT_S = 30.0
"""For all steps up to the agent's exec; they take 50 ms. A loaded machine has been seen at 3 s."""
KILL_TIMEOUT_S = 10.0
"""For a killed tree to be gone; only what is stuck in the kernel takes longer than moments."""
END_TIMEOUT_S = 15.0
"""For the warden to remove what is left and go: three times what a busy cgroup may take."""


class Started(msgspec.Struct, frozen=True):
    """The agent was executed."""

    pid: int
    target: int
    workspace: int | None
    """An open workspace, if only the warden's namespace has it."""


class Exit(msgspec.Struct, frozen=True):
    """The agent and everything below it has ended."""

    status: int | None
    """As of waitpid(2); None if the warden was lost."""
    cpu_ns: int = 0
    peak_bytes: int = 0
    inner: int | None = None
    """The same of the agent in a sandbox, whose own status may stand for two ends."""


class StepFailed(Exception):  # becomes a `LaunchRefused`, with names
    """A step before the agent's exec failed."""

    def __init__(self, stage: str, error: str) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


class WardenProcess:
    """One warden. Make it with `spawn`; every one must be ended with `end`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._frames = MessageDecoder()
        self._fds: list[int] = []
        self._started: asyncio.Future[Started] | None = None
        self.agent: int | None = None
        """The process that it started last, which leads a session."""
        self.lost = False
        """Whether it ended before it was asked to."""
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        self._gone = self._loop.create_future()
        self._giving_up: asyncio.TimerHandle | None = None
        self._loop.add_reader(control.fileno(), self._readable)
        self._watch()

    @classmethod
    def spawn(cls) -> WardenProcess:
        """Start one; it waits for a job."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            process = subprocess.Popen(  # noqa: S603  # our own interpreter and text
                [
                    interpreter(),
                    "-I",
                    "-S",
                    "-c",
                    stub("warden"),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """The warden's own."""
        return self._process.pid

    async def start(self, job: Mapping[str, Any], fds: Mapping[str, int]) -> Started:
        """Send a job; return when the agent was executed; raises `StepFailed` if it was not."""
        if self.exited.done():
            self.exited = self._loop.create_future()
        self._started = self._loop.create_future()
        data = frame({**job, "do": "start", "fds": list(fds)})
        sent = socket.send_fds(self._control, [data], list(fds.values()))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._loop.sock_sendall(self._control, data[sent:])
                return await self._started
        except TimeoutError:
            raise StepFailed("start", f"not done within {START_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise StepFailed("warden", error.strerror or "lost") from None

    def terminate(self) -> None:
        """Ask the agent itself to end."""
        self._tell("term")

    def kill(self) -> None:
        """End everything below the warden; whoever cannot die is not waited for for ever."""
        self._tell("kill")
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(KILL_TIMEOUT_S, self._give_up)

    async def end(self) -> None:
        """Close the socket, which ends everything, and collect the warden."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
        self._lost()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._process.kill()
            await self._gone
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _tell(self, what: str) -> None:
        with suppress(OSError):  # it is gone, and so is everything below it
            self._control.send(frame({"do": what}))

    def _readable(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, READ_BYTES, MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds += fds
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self.lost = True
            self._lost()
        for message in self._frames.feed(data):
            self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        match message["did"]:
            case "started":
                workspace = self._fds.pop() if self._fds else None
                started = Started(message["pid"], message["target"], workspace)
                self.agent = started.pid
                if self._started is not None and not self._started.done():
                    self._started.set_result(started)
            case "refused":
                self._refuse(message["stage"], message["error"])
            case _:
                names = Exit.__struct_fields__
                self._exit(Exit(**{name: message[name] for name in names}))

    def _refuse(self, stage: str, error: str) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_exception(StepFailed(stage, error))

    def _give_up(self) -> None:
        self.lost = True
        self._lost()

    def _lost(self) -> None:
        """Settle whatever waits: no message will come any more."""
        self._refuse("warden", "lost")
        self._exit(Exit(None))

    def _exit(self, ended: Exit) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if not self.exited.done():
            self.exited.set_result(ended)

    def _watch(self) -> None:
        """Collect the process when it ends, so that no zombie is left."""
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # not Linux, or an old one
            waiting = self._loop.run_in_executor(None, self._process.wait)
            waiting.add_done_callback(lambda _: self._collected())
            return
        self._loop.add_reader(pidfd, self._collect, pidfd)

    def _collect(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._process.wait()
        self._collected()

    def _collected(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
