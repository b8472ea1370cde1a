"""Published clients, old and new, see the same of a server with and without the gate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.published import install, results
from tests.compat.published.place import environ, filled, lay_out
from tests.compat.published.table import CLIENTS, PARTNERS, SERVERS, Client
from tests.compat.published.wire import stable
from tests.compat.through import gate

if TYPE_CHECKING:
    from tests.compat.published.server import Server

if not results.ASKED_FOR:
    pytest.skip("the clients are not installed; make compat", allow_module_level=True)

PROGRAMS = Path(__file__).with_name("clients")
CLIENT_S = 60
"""For one session; the inspector has five."""
PAIRS = [
    pytest.param(client, mode, server, id=f"{client.alias} {mode} {server.name}")
    for client in CLIENTS
    for mode in client.modes
    for server in SERVERS
    if server.name in PARTNERS
]


def seen_by(client: Client, mode: str, server: Server, command: list[str], place: Path) -> Any:
    """Return what the client printed that it saw, after its directory was made anew."""
    lay_out(server, place)
    programs = install.client(client)
    calls, slow = filled(server.calls, place), filled(server.slow, place)
    program, *words = client.program
    words += [client.alias, mode, json.dumps(calls), json.dumps(slow), *command]
    env = {**environ(server, place), "PYTHONWARNINGS": "ignore"}
    if client.registry == "npm":
        modules = programs.parent
        env |= {"MODULES": str(modules), "NODE": str(programs.parent / install.NODE_PROGRAM)}
        start = "node"
    else:
        start = str(programs / "python")
    done = subprocess.run(
        [start, str(PROGRAMS / program), *words],
        capture_output=True,
        cwd=place,
        env=env,
        timeout=CLIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    return json.loads(done.stdout.splitlines()[-1])  # some libraries print, too


@pytest.mark.parametrize(("client", "mode", "server"), PAIRS)
def test_a_published_client_sees_the_same_through_the_gate(
    client: Client, mode: str, server: Server, tmp_path: Path
) -> None:
    pair = results.key(client, mode, server.name)
    results.forget(pair)
    place = tmp_path / "place"
    program = install.servers(server.registry) / server.start[0]
    command = [str(program), *filled(server.start[1:], place)]

    direct = seen_by(client, mode, server, command, place)
    through = seen_by(client, mode, server, gate(command, tmp_path), place)

    def by_step(seen: Any) -> dict[str, str]:
        steps = {f"{number} {step[0]}": step for number, step in enumerate(seen)}
        return stable(steps, server.unstable)

    assert by_step(through) == by_step(direct)
    assert any('"tools"' in json.dumps(step) or "tools/list" in step for step in direct)
    results.note(pair)
