"""A process that makes calls at full speed is killed: what it had answered is written down.

The child says on a pipe which calls it has answered; a line there comes after the answer, so
every id that arrives must have its end in the log, whenever the process dies.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from callgate.audit.events import ADMITTED, TERMINAL
from callgate.audit.verify import verify
from callgate.cli.app import app
from tests.audit.helpers import run_python
from tests.conftest import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 100 if FULL else 10
IN_A_ROW = 5
"""Kills of processes that go on in the same log."""
TAMPERINGS = 1_000 if FULL else 60

CHILD = """
import asyncio, os, random, sys
from callgate import CallgateError, Policy, Router, ToolCall
from callgate.router.local import CURRENT

POLICY = '''
version: 1
defaults: {rate: unlimited}
agents:
  web:
    concurrency: 8
    queue: 40
    tools: {apart: {isolate: task}, slow: {timeout: 5ms}}
'''

class Failed(Exception):
    pass

async def tool(steps, fails):
    request_id = CURRENT.get().request_id
    for _ in range(steps):
        await asyncio.sleep(0)
    if fails:
        raise Failed(request_id)
    return request_id

async def slow():
    await asyncio.sleep(1)

async def caller(router):
    while True:
        kind = random.random()
        arguments = {"steps": random.randrange(3), "fails": random.random() < 0.1}
        try:
            if kind < 0.02:
                answered = await router.call(ToolCall("web", "slow", caller="alice"))
            elif kind < 0.1:
                answered = await router.call(ToolCall("web", "apart", arguments, "bob"))
            else:
                answered = await router.call(ToolCall("web", "tool", arguments))
        except Failed as error:
            answered = error.args[0]
        except CallgateError as error:
            if error.code not in ("limit.timeout", "tool.canceled"):
                continue
            answered = error.request_id
        os.write(1, answered.encode() + b"\\n")

async def main(audit, rotate):
    router = Router(Policy.parse(POLICY + f"audit: {{path: {audit}, rotate: {rotate}}}"))
    for name in ("tool", "apart"):
        router.add_tool("web", name, tool)
    router.add_tool("web", "slow", slow)
    async with router:
        os.write(1, b"ready\\n")
        await asyncio.gather(*(caller(router) for _ in range(20)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""

RESTART = """
import asyncio, sys
from callgate import Policy, Router

async def main(audit):
    async with Router(Policy.parse(f"version: 1\\naudit: {{path: {audit}}}")):
        pass

asyncio.run(main(sys.argv[1]))
"""


class Line(msgspec.Struct, gc=False):
    event: str
    request_id: str | None = None
    count: int | None = None


decode = msgspec.json.Decoder(Line).decode


def run_and_kill(audit: Path, calls: int, rotate: str) -> list[str]:
    """Let a child answer so many calls, kill it, and return all that it said it had answered."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(audit), rotate],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    ) as child:
        assert child.stdout is not None
        said = b""
        watchdog = threading.Timer(60, child.terminate)  # then the pipe ends, and the test fails
        watchdog.start()
        try:
            while said.count(b"\n") <= calls:
                more = os.read(child.stdout.fileno(), 1 << 16)
                assert more, "the child ended by itself"
                said += more
        finally:
            watchdog.cancel()
            child.send_signal(signal.SIGKILL)
        said += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    whole, _, _ = said.rpartition(b"\n")
    return whole.decode().split("\n")[1:]


def lines_of(audit: Path) -> Iterator[Line]:
    """Of all segments, but for a torn last one."""
    for file in sorted(audit.glob("*/*.jsonl")):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield decode(line)


def test_a_killed_process_loses_no_answered_call_and_every_call_ends_once(tmp_path: Path) -> None:
    pick = random.Random(19)  # noqa: S311  # not a secret
    answered: set[str] = set()
    recovered = 0
    for kill in range(KILLS):
        audit = tmp_path / str(kill // IN_A_ROW)
        calls = pick.choice((0, pick.randrange(50), pick.randrange(2_000)))

        said = run_and_kill(audit, calls, pick.choice(("64MiB", "20KiB")))

        ended = {line.request_id for line in lines_of(audit) if line.event in TERMINAL}
        assert ended.issuperset(said), f"kill {kill}: answered and not written"
        assert not verify(audit).tampered
        answered.update(said)
        if kill % IN_A_ROW == IN_A_ROW - 1:
            recovered += restart_and_check(audit)
            shutil.rmtree(audit)
    assert len(answered) > KILLS * 50
    assert recovered > 0, "no call was under way when a process died"


def restart_and_check(audit: Path) -> int:
    """After a start every admitted call has one end; returns how many were `lost`."""
    child = run_python(RESTART, audit)
    assert child.returncode == 0, child.stderr.decode()
    admitted: Counter[str | None] = Counter()
    ended: Counter[str | None] = Counter()
    lost = 0
    for line in lines_of(audit):
        admitted[line.request_id] += line.event == ADMITTED
        ended[line.request_id] += line.event in TERMINAL
        lost += line.event == "tool.call.lost"
    assert +admitted == +ended
    assert max(admitted.values()) == 1
    assert verify(audit).ok
    shown = CliRunner().invoke(app, ["audit", "verify", str(audit)])
    assert shown.exit_code == 0, shown.output
    return lost


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two lives in several segments, the first of which ended by a kill."""
    audit = tmp_path_factory.mktemp("killed") / "audit"
    run_and_kill(audit, 150, "20KiB")
    restart_and_check(audit)
    assert len(list(audit.glob("*/*.jsonl"))) > 1
    return audit


def edit(lines: list[bytes], at: int, pick: random.Random) -> None:
    where = pick.randrange(len(lines[at]) - 1)
    change = bytes([lines[at][where] ^ (1 << pick.randrange(7))])
    lines[at] = lines[at][:where] + change + lines[at][where + 1 :]


def delete(lines: list[bytes], at: int, _: random.Random) -> None:
    del lines[at]


def swap(lines: list[bytes], at: int, _: random.Random) -> None:
    lines[at - 1], lines[at] = lines[at], lines[at - 1]


def cut(lines: list[bytes], at: int, _: random.Random) -> None:
    del lines[at:]


@pytest.mark.parametrize("tamper", [edit, delete, swap, cut])
def test_every_tampered_line_of_a_killed_and_recovered_log_is_found(
    written: Path, tmp_path: Path, tamper: object
) -> None:
    assert callable(tamper)
    pick = random.Random(23)  # noqa: S311  # not a secret
    copy = tmp_path / "audit"
    shutil.copytree(written, copy)
    files = sorted(copy.glob("*/*.jsonl"))
    for _ in range(TAMPERINGS // 4):
        file = pick.choice(files)
        original = file.read_bytes()
        lines = original.splitlines(keepends=True)
        at = pick.randrange(len(lines) if tamper is not swap else len(lines) - 1)
        at += tamper is swap
        tamper(lines, at, pick)
        file.write_bytes(b"".join(lines))

        assert verify(copy).tampered, f"{file.name}:{at + 1}"

        file.write_bytes(original)
    assert verify(copy).ok
