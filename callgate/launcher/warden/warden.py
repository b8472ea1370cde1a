"""The warden: a small process between callgate and an agent, so that no orphan is left.

It is a subreaper: whatever the agent starts, and however it detaches that, stays below the
warden. It holds one end of a socket whose other end only callgate has. When callgate goes,
also by `kill -9`, the socket ends; the warden then kills the run's cgroup, or every
descendant until none is left, removes what the run left behind, and goes too. If the warden
itself is killed, the agent dies by its parent-death signal, and the cgroup, if there is one,
is found by the next sweep.

    python -I -S -c <stub> → wait for a job → fork → shim → the agent
                           ← started, refused or exited

A job can be followed by another: a paused agent's workspace may be mounted only here, so
the warden stays with it until callgate sends the next job or goes.

Nothing but the standard library, and of that only modules without cost: this is started for
every run. On systems other than Linux there is no subreaper and no /proc; there it kills the
agent's session and cannot find what left that.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums
import _socket
import os
import select
import sys

from callgate.launcher.warden import leftovers, libc, shim, tree, warden_messages, warden_mounts
from callgate.launcher.warden.warden_stdlib import ignore_os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KILL_LOOK_MS = 5
"""Between two looks for what is still alive; a killed process is gone within about one."""
MAX_SAID_BYTES = 4096
"""Of what bwrap prints before the agent runs: an error is one line."""


_CLOEXEC = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
_ONE_FD = _socket.CMSG_SPACE(warden_messages.FD_BYTES)


class RunningAgent:
    """One agent: its process, what it reported before it became the agent, its usage."""

    def __init__(self, child: int, report: _socket.socket, *, is_sandboxed: bool) -> None:
        self.is_sandboxed = is_sandboxed
        self.child = child
        self.target = child
        """The agent itself, whom SIGTERM is for; in a sandbox not the same."""
        self.report: _socket.socket | None = report
        self.executing: int | None = None
        """A pipe from the last step in a sandbox, which exec closes."""
        self.inner: int | None = None
        """A descriptor of the agent in a sandbox, whose end only the sandbox's init sees."""
        self.said = b""
        self.started = False
        self.status: int | None = None
        self.cpu_ns = 0
        self.peak_bytes = 0


class Warden:
    """The one object of the process."""

    def __init__(self, control: int, parent: int) -> None:
        os.set_inheritable(control, False)  # whoever holds it could speak to callgate
        self._control = _socket.socket(fileno=control)
        self._frames = warden_messages.MessageDecoder()
        self._fds: list[int] = []
        self._job: RunningAgent | None = None
        self._kept: dict[str, int] = {}
        """Descriptors to kill by, and the lock that says we are there."""
        self._leftovers: dict[str, Any] = {}
        self._mounted: dict[str, Any] | None = None
        self._workspace: int | None = None
        self._ending = False
        self._wake, wake_write = os.pipe()
        for fd in (self._wake, wake_write):
            os.set_blocking(fd, False)
        for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
            _signal.signal(number, _wake_up)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        if libc.available:
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        self._poll = select.poll()
        self._poll.register(self._control.fileno(), select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._parent = _watch(parent)
        if self._parent is not None:
            # A fork of callgate that did not exec would keep the socket open after it.
            self._poll.register(self._parent, select.POLLIN)

    def run(self) -> None:
        """Until callgate goes or somebody asks us to."""
        try:
            while not self._ending:
                for fd, _ in self._poll.poll():
                    self._ready(fd)
                self._reap()
                self._settle()
        except Exception as error:  # noqa: BLE001  # callgate should hear of a fault of ours
            self._send({"did": "refused", "stage": "warden", "error": shim.describe(error)})
        finally:
            self._kill_all()
            leftovers.remove(self._leftovers, self._mounted)

    def _ready(self, fd: int) -> None:
        if fd == self._control.fileno():
            self._receive()
        elif fd == self._wake:
            signals = os.read(self._wake, 512)
            self._ending |= any(number != _signal.SIGCHLD for number in signals)
        elif fd == self._parent:
            self._ending = True
        else:
            self._hear()

    def _receive(self) -> None:
        space = _socket.CMSG_SPACE(warden_messages.MAX_FDS * warden_messages.FD_BYTES)
        try:
            data, control, _, _ = self._control.recvmsg(warden_messages.READ_BYTES, space, _CLOEXEC)
        except OSError:
            data, control = b"", []
        for _, _, body in control:
            self._fds += warden_messages.unpack_fds(body)
        for fd in self._fds:
            os.set_inheritable(fd, False)  # where the flag above does not exist
        if not data:
            self._ending = True
        for message in self._frames.feed(data):
            match message["do"]:
                case "start":
                    self._start(message)
                case "term":
                    self._terminate()
                case "kill":
                    self._kill_all()

    def _start(self, job: dict[str, Any]) -> None:
        fds = dict(zip(job["fds"], self._fds, strict=True))
        self._fds = []
        for fd in self._kept.values():
            os.close(fd)
        self._kept = {name: fds[name] for name in job["keep"]}
        self._leftovers = job["leftovers"]
        try:
            if job["mounts"] is not None and self._mounted is None:
                self._mounted = job["mounts"]
                self._workspace = warden_mounts.prepare(job["mounts"])
            self._fork(job, fds)
        except (OSError, ValueError) as error:
            self._send({"did": "refused", "stage": "mounts", "error": shim.describe(error)})
        for name, fd in fds.items():
            if name not in self._kept:
                os.close(fd)

    def _fork(self, job: dict[str, Any], fds: dict[str, int]) -> None:
        report, theirs = _socket.socketpair()
        fds["report"] = theirs.detach()
        warden = os.getpid()
        child = os.fork()
        if child == 0:
            shim.exec_agent(job, fds, warden)
        report.setblocking(False)
        self._poll.register(report.fileno(), select.POLLIN)
        self._job = RunningAgent(child, report, is_sandboxed=bool(job["args"]))

    def _hear(self) -> None:
        """What the shim, bwrap or the last step in the sandbox has to say."""
        job = self._job
        if job is None:
            return
        while job.report is not None:
            try:
                data, control, _, _ = job.report.recvmsg(MAX_SAID_BYTES, _ONE_FD, _CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                data, control = b"", []
            for _, _, body in control:
                self._executing(job, *warden_messages.unpack_fds(body))
            if not data:
                self._poll.unregister(job.report.fileno())
                job.report.close()
                job.report = None
                if not job.said and not job.is_sandboxed:  # closed by exec
                    self._started(job)
            job.said = (job.said + data.replace(shim.EXECUTING, b""))[:MAX_SAID_BYTES]
        self._hear_exec(job)

    def _executing(self, job: RunningAgent, pipe: int) -> None:
        """The last step is about to become the agent, which has not begun yet."""
        os.set_blocking(pipe, False)
        job.executing = pipe
        self._poll.register(pipe, select.POLLIN)
        below = tree.descendants(job.child)
        # bwrap → the namespace's init → the agent.
        if len(below) > 1:  # else it has ended already, and bwrap tells how
            job.target = below[1]
            job.inner = _watch(job.target)

    def _hear_exec(self, job: RunningAgent) -> None:
        if job.executing is None:
            return
        try:
            data = os.read(job.executing, MAX_SAID_BYTES)
        except BlockingIOError:
            return
        self._poll.unregister(job.executing)
        os.close(job.executing)
        job.executing = None
        job.said += data
        if not data:
            self._started(job)

    def _started(self, job: RunningAgent) -> None:
        job.started = True
        fds = [] if self._workspace is None else [self._workspace]
        self._send({"did": "started", "pid": job.child, "target": job.target}, fds)

    def _reap(self) -> bool:
        """Collect whoever ended; False if there is nobody left to end."""
        job = self._job
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if job is not None:
                job.cpu_ns += round((usage.ru_utime + usage.ru_stime) * 1e9)
                job.peak_bytes = max(job.peak_bytes, usage.ru_maxrss * _MAXRSS_UNIT)
                if pid == job.child:
                    job.status = status

    def _settle(self) -> None:
        """When the agent has ended, end the rest and say so."""
        job = self._job
        if job is None or job.status is None:
            return
        self._hear()
        self._kill_all()
        self._hear()
        self._job = None
        if job.report is not None:
            self._poll.unregister(job.report.fileno())
            job.report.close()
        inner = None
        if job.inner is not None:
            inner = tree.status_of(job.inner)
            os.close(job.inner)
        if job.started:  # what bwrap may have said since then is of no interest
            message = {"did": "exited", "status": job.status, "inner": inner}
            self._send(message | {"cpu_ns": job.cpu_ns, "peak_bytes": job.peak_bytes})
            return
        stage, _, error = job.said.strip(b"\0\n").decode("utf-8", "replace").rpartition("\0")
        self._send({"did": "refused", "stage": stage or "bwrap", "error": error})

    def _terminate(self) -> None:
        if self._job is not None and self._job.status is None:
            with ignore_os_error:
                os.kill(self._job.target, _signal.SIGTERM)

    def _kill_all(self) -> None:
        """Everything below us, until there is nobody; whoever is stuck in the kernel delays."""
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        while self._reap():
            leftovers.kill_cgroup(self._kept)
            below = tree.descendants(os.getpid())
            for pid in below:
                with ignore_os_error:
                    os.kill(pid, _signal.SIGKILL)
            if not below and self._job is not None:
                with ignore_os_error:
                    os.killpg(self._job.child, _signal.SIGKILL)
            if waiting.poll(KILL_LOOK_MS):
                signals = os.read(self._wake, 512)
                self._ending |= any(number != _signal.SIGCHLD for number in signals)

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        packed = warden_messages.pack_fds(fds or ())
        control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if fds else []
        with ignore_os_error:  # nobody is there to hear it; the next read says so
            self._control.sendmsg([warden_messages.frame(message)], control)


_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _watch(pid: int) -> int | None:
    """Open a descriptor that becomes readable when the process ends, where the system can."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _wake_up(_number: int, _frame: object) -> None:
    """The wakeup descriptor has the news; a handler must exist for it to be written."""


def main() -> None:
    """Be a warden: `<socket> <pid of callgate>`."""
    os.chdir("/")
    Warden(int(sys.argv[1]), int(sys.argv[2])).run()
