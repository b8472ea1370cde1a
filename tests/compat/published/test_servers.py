"""Published servers answer the same with and without the gate, message by message."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.published import install, results
from tests.compat.published.table import NOWHERE, SERVERS, Server
from tests.compat.published.wire import exchange, stable
from tests.compat.through import gate

if TYPE_CHECKING:
    from pathlib import Path

if not results.ASKED_FOR:
    pytest.skip("the servers are not installed; make compat", allow_module_level=True)

BEFORE_S = 10


def filled(value: Any, place: Path) -> Any:
    """Return `value` with the directory's name for every `{place}` in it."""
    if isinstance(value, str):
        return value.replace("{place}", str(place))
    if isinstance(value, dict):
        return {key: filled(each, place) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(each, place) for each in value)
    return value


def environ(server: Server, place: Path) -> dict[str, str]:
    """Return the variables of a server: few, so that it is the same for everybody."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    few = {"PATH": os.environ["PATH"], "HOME": str(place), "TZ": "UTC", **proxies}
    few["PYTHONHASHSEED"] = "0"  # some describe themselves in the order of a set
    return {**few, **filled(dict(server.env), place)}


def lay_out(server: Server, place: Path) -> None:
    """Make the directory as the server finds it at the beginning of a session."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, text in server.files.items():
        (place / name).write_text(text, encoding="utf-8")
    if server.before:
        subprocess.run(filled(server.before, place), cwd=place, timeout=BEFORE_S, check=True)


async def seen_of(server: Server, command: list[str], place: Path) -> tuple[dict[str, Any], list[int]]:
    lay_out(server, place)
    calls, slow = filled(server.calls, place), filled(server.slow, place)
    return await exchange(command, place, environ(server, place), calls, slow)


@pytest.mark.parametrize("server", SERVERS, ids=lambda each: each.name)
async def test_a_published_server_answers_the_same_through_the_gate(
    server: Server, tmp_path: Path
) -> None:
    program = install.servers(server.registry) / server.start[0]
    place = tmp_path / "place"
    command = [str(program), *filled(server.start[1:], place)]

    direct, _ = await seen_of(server, command, place)
    through, late = await seen_of(server, gate(command, tmp_path), place)

    assert stable(through, server.unstable) == stable(direct, server.unstable)
    assert late == [], "an answer to a call that was cancelled"
    results.note(server, "", direct["initialize"]["result"]["protocolVersion"])
