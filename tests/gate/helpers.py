"""`callgate run` as a process, and a client that speaks to it; every wait is bounded."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psutil

from tests.peers.helpers import call, initialize, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Message = dict[str, Any]
T = TypeVar("T")

ROOT = Path(__file__).parents[2]
REFERENCE = [sys.executable, str(ROOT / "examples" / "reference_agent.py")]
ASYNCIO = Path(__file__).parent / "asyncio_only"
"""Has a module that hides uvloop: these tests are about the loop that everybody has."""
FOREVER_S = 60.0
"""Bounds every wait; nothing takes a tenth of it on a machine that does nothing else."""

OPEN = """
version: 1
defaults: {timeout: 20s, max_timeout: 60s, concurrency: 200, rate: unlimited, handshake: 30s}
agents: {web: {}}
audit: {path: audit}
"""
"""Lets everything pass, and writes it down."""

RESTARTED = OPEN.replace("web: {}", 'web: {restart: {on: always, backoff: "0s..0s", max: 1000000}}')


def agent(code: str) -> list[str]:
    """A command for an agent of a few lines."""
    return [sys.executable, "-u", "-c", code]


class Gate:
    """A gate and its client. Leaving it kills what is left, and looks for orphans."""

    def __init__(
        self,
        tmp_path: Path,
        command: list[str],
        policy: str | None = OPEN,
        *options: str,
        env: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> None:
        self.path = tmp_path
        self.policy = tmp_path / "policy.yaml"
        if policy is not None:
            self.policy.write_text(policy)
            options = ("--policy", str(self.policy), "--agent", "web", *options)
        self._log = (tmp_path / "stderr.log").open("wb")
        settings: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._log,
            **popen,
        }
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "callgate", "run", *options, "--", *command],
            env={**environment(tmp_path), **(env or {})},
            bufsize=0,
            **settings,
        )
        self._buffer = b""
        self.aside: list[Message] = []
        """What came while something else was waited for."""
        self._tree: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.look_at_tree()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(FOREVER_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._log.close()
        until(lambda: all(is_gone(process) for process in self._tree))

    # The client.

    def send(self, *messages: Message | bytes) -> None:
        assert self.process.stdin is not None
        data = b"".join(
            one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in messages
        )
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def receive(self, within_s: float = FOREVER_S) -> Message:
        """The next message; raises `EOFError` at the end, `TimeoutError` if none comes."""
        ends = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            self._read(ends)
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _read(self, ends: float) -> None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], max(0.0, ends - time.monotonic()))[0]:
            raise TimeoutError
        data = os.read(fd, 1 << 20)
        if not data:
            raise EOFError
        self._buffer += data

    def answer_to(self, own_id: Any, within_s: float = FOREVER_S) -> Message:
        """The response with this id; what else comes is put aside."""
        for position, message in enumerate(self.aside):
            if is_answer(message, own_id):
                return self.aside.pop(position)
        ends = time.monotonic() + within_s
        while not is_answer(message := self.receive(ends - time.monotonic()), own_id):
            self.aside.append(message)
        return message

    def ask(self, message: Message, within_s: float = FOREVER_S) -> Message:
        self.send(message)
        return self.answer_to(message["id"], within_s)

    def shake_hands(self) -> Message:
        answer = self.ask(initialize("hello"))
        self.send(note("notifications/initialized"))
        return answer

    def rest(self) -> list[Message]:
        """Everything up to the end."""
        messages = []
        with suppress(EOFError):
            while True:
                messages.append(self.receive())
        return messages

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(FOREVER_S)

    def ends(self) -> int:
        """Close our side and wait; the exit code."""
        self.look_at_tree()
        self.close_stdin()
        self.rest()
        return self.wait()

    # What can be seen from outside.

    @property
    def stderr(self) -> str:
        return (self.path / "stderr.log").read_text(errors="replace")

    def records(self) -> Iterator[Message]:
        for file in sorted((self.path / "audit").glob("*/*.jsonl")):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def events(self, prefix: str = "") -> list[str]:
        names = [record["event"] for record in self.records()]
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def look_at_tree(self) -> list[psutil.Process]:
        """Everything below the gate now; whoever was seen once must be gone at the end."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
            self._tree.update(found)
            return found
        return []

    def agent_process(self) -> psutil.Process:
        """The agent itself, which is below the warden."""
        return until(self._find_agent)

    def _find_agent(self) -> psutil.Process | None:
        for process in self.look_at_tree():
            with suppress(psutil.Error):
                parent = process.parent()
                if parent is not None and parent.pid != self.process.pid:
                    return process
        return None

    def kill_agent(self) -> int:
        process = self.agent_process()
        process.send_signal(signal.SIGKILL)
        return int(process.pid)


def is_gone(process: psutil.Process) -> bool:
    """Or waits for whoever adopted it, which nobody here can hasten."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_answer(message: Message, own_id: Any) -> bool:
    return "method" not in message and message.get("id") == own_id


def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": f"{ASYNCIO}{os.pathsep}{ROOT}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONWARNINGS": "error",
    }


def until(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something."""
    ends = time.monotonic() + FOREVER_S
    while not (found := look()):
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)
    return found


def tool(own_id: Any, name: str, /, **arguments: Any) -> Message:
    """A call of a tool of the reference agent."""
    return call(own_id, name, arguments)


def words(message: Message) -> str:
    """The text of a tool's result."""
    found: str = message["result"]["content"][0]["text"]
    return found
