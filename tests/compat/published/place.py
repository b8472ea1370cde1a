"""The directory that a server is started in: made anew for each session, always at one path."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tests.compat.published.server import NOWHERE, Server

if TYPE_CHECKING:
    from pathlib import Path

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
