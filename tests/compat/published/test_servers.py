"""Published servers answer the same with and without the gate, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.published import install, results
from tests.compat.published.place import environ, filled, lay_out
from tests.compat.published.table import SERVERS
from tests.compat.published.wire import exchange, stable
from tests.compat.through import gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.compat.published.server import Server

if not results.ASKED_FOR:
    pytest.skip("the servers are not installed; make compat", allow_module_level=True)


async def seen_of(
    server: Server, command: list[str], place: Path
) -> tuple[dict[str, Any], list[Any]]:
    lay_out(server, place)
    calls, slow = filled(server.calls, place), filled(server.slow, place)
    return await exchange(command, place, environ(server, place), calls, slow)


def is_done(answer: dict[str, Any]) -> bool:
    """Return whether the tool did what it was asked for."""
    return "result" in answer and not answer["result"].get("isError")


@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.name)
async def test_a_published_server_answers_the_same_through_the_gate(
    server: Server, tmp_path: Path
) -> None:
    results.forget(results.key(server))
    program = install.servers(server.registry) / server.start[0]
    place = tmp_path / "place"
    command = [str(program), *filled(server.start[1:], place)]

    direct, _ = await seen_of(server, command, place)
    through, late = await seen_of(server, gate(command, tmp_path), place)

    assert direct["tools/list"][0]["result"]["tools"] != []
    assert server.lacks or is_done(direct[f"0 {server.calls[0][0]}"])
    assert stable(through, server.unstable) == stable(direct, server.unstable)
    assert late == [], "an answer to a call that was cancelled"
    results.note(results.key(server), direct["initialize"]["result"]["protocolVersion"])
