"""The same two tools as `stdio_echo.py`, on FastMCP: run by the Python that has it."""

from __future__ import annotations

import importlib
import os
from typing import Any


def echo(text: str) -> str:
    """Give a text back."""
    return text


def pid() -> str:
    """Say which process this is."""
    return str(os.getpid())


def main() -> None:
    """Serve on stdin and stdout."""
    server: Any = importlib.import_module("fastmcp").FastMCP("echo")
    server.tool(echo)
    server.tool(pid)
    server.run(show_banner=False)


if __name__ == "__main__":
    main()
