"""Who stands in front of the server, where it is found, and what it does for its number.

The peers are programs, not libraries: each lives in an environment of its own, because their
dependencies exclude each other's. `BENCH_PEERS` (or `--peers`) says where to look: folders with
environments in them (`DIR/NAME/bin`, `DIR/NAME/node_modules/.bin`), or folders of programs; what
is not there is looked for on PATH. What is found nowhere is left out, and the result says so.

    python -m benchmarks.stdio_peers DIR     # makes such a folder, with pip and npm
    BENCH_PEERS=DIR python -m benchmarks.stdio

What is said of the peers comes from reading and running the versions that the result names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Absent
from benchmarks.stdio_load import Http, Pipes, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.stdio_load import Link

HERE = Path(__file__).parent
ECHO = [sys.executable, str(HERE / "stdio_echo.py")]

PYTHON_PEERS = {
    "fastmcp": ["fastmcp"],
    "mcp-proxy": ["mcp-proxy"],
    "mcp-gateway": ["mcp-gateway", "mcp<2"],  # it does not say so, but imports what 2 renamed
    "mcp-firewall": ["mcp-firewall"],
}
NPM_PEERS = ["supergateway", "mcp-proxy"]

POLICY = """
version: 1
global: {rate: 10000000/second, concurrency: 1000}
callers:
  "*": {rate: 10000000/second}
agents:
  echo: {rate: 10000000/second, concurrency: 1000, timeout: 60s}
audit: {path: audit, rotate: 16MiB, max_bytes: 128MiB}
"""
"""Three rates and two concurrency limits on each call, none of which is ever reached."""

FIREWALL = """
version: 1
defaultAction: allow
globalRateLimit: {maxCalls: 1000000000, windowSeconds: 1}
"""
"""It keeps the time of every call of the window, so a short one is the quicker."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of the benchmark keeps its files, and where it finds programs."""

    folder: Path
    peers: tuple[Path, ...]

    @property
    def env(self) -> dict[str, str]:
        """Of every process: nothing that changes how Python buffers or caches."""
        dropped = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, "XDG_STATE_HOME": str(self.folder / "state")}

    @property
    def log(self) -> str:
        """What all processes say of themselves."""
        return str(self.folder / "stderr.log")

    def find(self, name: str, *, is_node: bool = False) -> Path:
        """A program of that name; two peers have the same, in Python and in Node."""
        folders = [folder for peers in self.peers for folder in _bins(peers)]
        path = os.environ.get("PATH", "").split(os.pathsep)
        folders += [Path(sys.executable).parent, *map(Path, path)]
        for folder in folders:
            found = folder / name
            if found.is_file() and ("node_modules" in found.resolve().parts) == is_node:
                return found
        raise Absent(f"no {name} on PATH or in BENCH_PEERS")


@dataclass(frozen=True, slots=True)
class Peer:
    """One way from the client to the server."""

    key: str
    title: str
    does: str
    lacks: str
    start: Callable[[Place], Link]
    version: Callable[[Place], str] = lambda _: ""


def _bins(folder: Path) -> list[Path]:
    inside = [*folder.glob("*/bin"), *folder.glob("*/node_modules/.bin")]
    return [folder, *sorted(inside)]


def _direct(place: Place) -> Link:
    return Pipes(ECHO, env=place.env, log=place.log)


def _cat(place: Place) -> Link:
    cat = str(place.find("cat"))
    return Pipes([cat], ECHO, [cat], env=place.env, log=place.log)


def _pump(place: Place) -> Link:
    command = [sys.executable, str(HERE / "stdio_pump.py"), *ECHO]
    return Pipes(command, env=place.env, log=place.log)


def _callgate(place: Place) -> Link:
    return _gated(place, ECHO)


def _gated(place: Place, server: list[str]) -> Link:
    policy = place.folder / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    gate = [str(place.find("callgate")), "run", "--policy", str(policy), "--", *server]
    return Pipes(gate, env=place.env, log=place.log)


def _zero(place: Place) -> Link:
    gate = [str(place.find("callgate")), "run", "--", *ECHO]
    return Pipes(gate, env=place.env, log=place.log)


def _fastmcp(place: Place) -> Link:
    python = place.find("fastmcp").parent / "python"
    script = str(HERE / "stdio_fastmcp.py")
    return Pipes([str(python), script, *ECHO], env=place.env, log=place.log)


def _real_server(place: Place) -> list[str]:
    return [str(place.find("fastmcp").parent / "python"), str(HERE / "stdio_real.py")]


def _real(place: Place) -> Link:
    return Pipes(_real_server(place), env=place.env, log=place.log)


def _real_gated(place: Place) -> Link:
    return _gated(place, _real_server(place))


def _mcp_gateway(place: Place) -> Link:
    program = place.find("mcp-gateway")
    config = place.folder / "mcp-gateway.json"
    servers = {"echo": {"command": ECHO[0], "args": ECHO[1:]}}
    gateway = {"mcpServers": {"mcp-gateway": {"command": "mcp-gateway", "servers": servers}}}
    config.write_text(json.dumps(gateway), encoding="utf-8")
    command = [str(program), "--mcp-json-path", str(config)]
    return Pipes(command, env=place.env, log=place.log)


def _mcp_firewall(place: Place) -> Link:
    program = place.find("mcp-firewall")
    config = place.folder / "mcp-firewall.yaml"
    audit = f"audit: {{enabled: true, path: {place.folder / 'mcp-firewall.jsonl'}}}\n"
    config.write_text(FIREWALL + audit, encoding="utf-8")
    command = [str(program), "wrap", "--config", str(config), "--", *ECHO]
    return Pipes(command, env=place.env, log=place.log)


def _mcp_proxy(place: Place) -> Link:
    port = free_port()
    command = [str(place.find("mcp-proxy")), "--port", str(port), "--log-level", "ERROR"]
    return Http([*command, "--", *ECHO], port=port, path="/mcp", env=place.env, log=place.log)


def _npm_mcp_proxy(place: Place) -> Link:
    port = free_port()
    program = str(place.find("mcp-proxy", is_node=True))
    command = [program, "--port", str(port), "--host", "127.0.0.1", "--server", "stream"]
    command += ["--no-eventStore", "--", *ECHO]
    return Http(command, port=port, path="/mcp", env=place.env, log=place.log)


def _supergateway(place: Place) -> Link:
    port = free_port()
    command = [str(place.find("supergateway", is_node=True)), "--stdio", " ".join(ECHO)]
    command += ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]
    command += ["--port", str(port)]
    return Http(command, port=port, path="/mcp", env=place.env, log=place.log)


def _of_python(program: str, package: str) -> Callable[[Place], str]:
    def version(place: Place) -> str:
        python = place.find(program).parent / "python"
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return _output([str(python), "-c", code])

    return version


def _of_node(program: str) -> Callable[[Place], str]:
    def version(place: Place) -> str:
        script = place.find(program, is_node=True).resolve()
        parts = script.parts
        home = Path(*parts[: parts.index("node_modules") + 2])
        described = json.loads((home / "package.json").read_text(encoding="utf-8"))
        return str(described["version"])

    return version


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603  # a peer's
    return done.stdout.decode().strip()


_ENFORCES = "three rates, two concurrency limits and a deadline on each call; chained audit, two "
_ENFORCES += "records a call, each written before its answer; whole-tree kill by a warden."
_BRIDGE = "an HTTP bridge, so its client speaks HTTP: not the same wire."

PEERS = (
    Peer("direct", "direct", "client and server, one pipe each way.", "", _direct),
    Peer("cat", "cat", "one `cat` each way: a byte pump.", "any look at what passes.", _cat),
    Peer(
        "pump",
        "asyncio byte pump",
        "reads and writes bytes: what a Python program in between costs.",
        "any look at what passes.",
        _pump,
    ),
    Peer("callgate", "callgate run", _ENFORCES, "", _callgate),
    Peer(
        "fastmcp",
        "FastMCP proxy",
        "`create_proxy` over stdio.",
        "limits, audit.",
        _fastmcp,
        _of_python("fastmcp", "fastmcp"),
    ),
    Peer(
        "mcp-gateway",
        "mcp-gateway (PyPI)",
        "stdio to stdio, no plugin.",
        "limits, audit.",
        _mcp_gateway,
        _of_python("mcp-gateway", "mcp-gateway"),
    ),
    Peer(
        "mcp-firewall",
        "mcp-firewall (PyPI)",
        "stdio to stdio; one rate, scans of arguments and results, a chained audit.",
        "deadlines, concurrency limits.",
        _mcp_firewall,
        _of_python("mcp-firewall", "mcp-firewall"),
    ),
    Peer(
        "mcp-proxy",
        "mcp-proxy (PyPI)",
        _BRIDGE,
        "limits, audit.",
        _mcp_proxy,
        _of_python("mcp-proxy", "mcp-proxy"),
    ),
    Peer(
        "npm-mcp-proxy",
        "mcp-proxy (npm)",
        _BRIDGE,
        "limits, audit.",
        _npm_mcp_proxy,
        _of_node("mcp-proxy"),
    ),
    Peer(
        "supergateway",
        "supergateway (npm)",
        _BRIDGE,
        "limits, audit.",
        _supergateway,
        _of_node("supergateway"),
    ),
)

REAL = Peer("real", "FastMCP server", "the two tools on FastMCP.", "", _real)
REAL_GATED = Peer("real-gated", "FastMCP server behind callgate run", _ENFORCES, "", _real_gated)

ZERO = Peer("zero", "callgate run, no policy", "profile `interactive`, audit.", "", _zero)
"""For the start only: its rate would be reached."""


def install(folder: Path) -> None:
    """Make an environment for each peer; what cannot be installed is said and left out."""
    for name, packages in PYTHON_PEERS.items():
        home = folder / name
        _try([sys.executable, "-m", "venv", str(home)])
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _try([*pip, *packages])
    npm = shutil.which("npm")
    if npm is None:
        print("left out: the peers from npm; npm is not installed", file=sys.stderr)
        return
    (folder / "npm").mkdir(parents=True, exist_ok=True)
    _try([npm, "install", "--silent", "--prefix", str(folder / "npm"), *NPM_PEERS])


def _try(command: Sequence[str]) -> None:
    print(" ".join(command), file=sys.stderr)
    if subprocess.run(command, check=False).returncode:  # noqa: S603  # as the user asked
        print("  failed: left out", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say where: python -m benchmarks.stdio_peers DIR")
    install(Path(sys.argv[1]).resolve())
