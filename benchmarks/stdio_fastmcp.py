"""FastMCP's proxy in front of a stdio server: run by the Python that has fastmcp.

`create_proxy` is what its documentation recommends. The transport keeps the server's process
from one request to the next, which is its default and the quicker way.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Serve the command on the command line over stdio."""
    transports = importlib.import_module("fastmcp.client.transports")
    server = importlib.import_module("fastmcp.server")
    command, *arguments = sys.argv[1:]
    transport = transports.StdioTransport(command=command, args=arguments)
    server.create_proxy(transport, name="proxy").run(show_banner=False)


if __name__ == "__main__":
    main()
