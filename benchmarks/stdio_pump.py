"""Bytes passed on by asyncio and nothing else: what any Python program in between costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys


class Pump(asyncio.Protocol):
    """Writes what it reads."""

    def __init__(self, sink: asyncio.WriteTransport, ended: asyncio.Event) -> None:
        self._sink = sink
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._sink.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._ended.set()


async def main() -> None:
    """Run the command on the command line until either side ends."""
    command = sys.argv[1:]
    server = subprocess.Popen(  # noqa: ASYNC220, S603  # once, before anything waits
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pipes = ((sys.stdin.buffer, server.stdin), (server.stdout, sys.stdout.buffer))
    for source, target in pipes:
        sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, target)

        def make(sink: asyncio.WriteTransport = sink) -> Pump:
            return Pump(sink, ended)

        await loop.connect_read_pipe(make, source)
    await ended.wait()
    server.kill()
    server.wait()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
