from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callgate.cli.terminal import Joined, Size, set_window_size, window_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CHILD = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
def say(*words):  # not `print`, which raises if a signal comes while it prints and prints, too
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
signal.signal(signal.SIGINT, lambda *_: say("INT"))
signal.signal(signal.SIGWINCH, lambda *_: say(*os.get_terminal_size()))
say("ready", *os.get_terminal_size())
while data := os.read(0, 4096):
    say("heard", data.decode().strip())
say("over")
"""


class Person:
    """Somebody at a terminal: types, reads, and can change the window."""

    def __init__(self) -> None:
        self.hand, self.terminal = os.openpty()
        os.set_blocking(self.hand, False)
        self.seen = b""

    def types(self, data: bytes) -> None:
        os.write(self.hand, data)

    async def sees(self, text: bytes) -> None:
        async with asyncio.timeout(20):
            while text not in self.seen:
                try:
                    self.seen += os.read(self.hand, 4096)
                except BlockingIOError:
                    await asyncio.sleep(0.005)

    def close(self) -> None:
        os.close(self.hand)
        os.close(self.terminal)


@pytest.fixture
def person() -> Iterator[Person]:
    one = Person()
    set_window_size(one.hand, Size(24, 80))
    yield one
    one.close()


@asynccontextmanager
async def agent(stdin: int, stdout: int) -> AsyncIterator[None]:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    async with Joined(master, stdin, stdout) as joined:
        command = [sys.executable, "-I", "-S", "-c", CHILD]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        try:
            yield
            async with asyncio.timeout(20):
                await joined.agent_gone()
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_what_is_typed_reaches_the_agent_and_its_answer_the_person(person: Person) -> None:
    async with agent(person.terminal, person.terminal):
        await person.sees(b"ready 80 24")
        person.types(b"hello\r")
        await person.sees(b"heard hello")
        person.types(b"\x04")
        await person.sees(b"over")


async def test_ctrl_c_is_a_signal_to_the_agent_and_to_nobody_else(person: Person) -> None:
    async with agent(person.terminal, person.terminal):
        await person.sees(b"ready")
        person.types(b"\x03")
        await person.sees(b"INT")
        person.types(b"\x04")


async def test_a_new_size_of_the_window_is_news_for_the_agent(person: Person) -> None:
    async with agent(person.terminal, person.terminal):
        await person.sees(b"ready 80 24")
        set_window_size(person.hand, Size(50, 132))
        os.kill(os.getpid(), signal.SIGWINCH)
        await person.sees(b"132 50")
        person.types(b"\x04")


async def test_the_terminal_is_as_before_when_the_agent_is_gone(person: Person) -> None:
    before = termios.tcgetattr(person.terminal)
    async with agent(person.terminal, person.terminal):
        await person.sees(b"ready")
        assert termios.tcgetattr(person.terminal) != before
        person.types(b"\x04")

    assert termios.tcgetattr(person.terminal) == before


async def test_the_end_of_a_pipe_is_the_end_of_the_agents_input(person: Person) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"no newline at the end")
    os.close(write_end)
    async with agent(read_end, person.terminal):
        await person.sees(b"heard no newline at the end")
        await person.sees(b"over")
    os.close(read_end)


async def test_an_agent_that_does_not_read_can_still_be_heard() -> None:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    os.set_blocking(stdin_write, False)
    os.set_blocking(stdout_read, False)
    async with Joined(master, stdin_read, stdout_write):
        with pytest.raises(BlockingIOError):
            await fill(stdin_write)
        os.write(slave, b"still here")
        heard = b""
        async with asyncio.timeout(20):
            while b"still here" not in heard:
                try:
                    heard += os.read(stdout_read, 65536)
                except BlockingIOError:
                    await asyncio.sleep(0.005)
    for fd in (slave, stdin_read, stdin_write, stdout_read, stdout_write):
        os.close(fd)


async def fill(fd: int) -> None:
    """Until a few pauses have made no more room."""
    pauses = 0
    while True:
        try:
            os.write(fd, b"x" * 1000 + b"\n")
            pauses = 0
        except BlockingIOError:
            pauses += 1
            if pauses > 20:
                raise
            await asyncio.sleep(0.005)


def descriptors() -> list[Path]:
    return sorted(Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_no_descriptor_is_left(person: Person) -> None:
    before = descriptors()
    async with agent(person.terminal, person.terminal):
        await person.sees(b"ready")
        person.types(b"\x04")

    assert descriptors() == before


def test_what_is_no_terminal_has_no_window() -> None:
    read_end, write_end = os.pipe()

    assert window_size(read_end) is None
    os.close(read_end)
    os.close(write_end)
