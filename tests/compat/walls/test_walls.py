"""Published servers and everyday programs at level network: the same as without a sandbox.

What this looks for is a system call that the filter refuses and somebody needs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callgate.launcher.host import survey
from tests.compat.through import install_npm
from tests.compat.walls.client import exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if find_spec("mcp_server_fetch") is None:
    pytest.skip("the servers are not installed; make compat", allow_module_level=True)

PROGRAM_S = 120
BIN = Path(sys.executable).parent
TRUST = ("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0")
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module", autouse=True)
def _able() -> None:
    host = survey.with_sandbox(survey.with_groups(survey.survey()))
    for capability in (host.bwrap, host.seccomp):
        if not capability.present:
            pytest.skip(f"no sandbox: {capability.reason}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that a sandbox's user may write to."""
    files = tmp_path / "files"
    files.mkdir()
    files.chmod(0o777)
    (files / "a.txt").write_text("hello\n")
    return files


def walled(command: list[str], tmp_path: Path, *mounts: Path) -> list[str]:
    """The command at level network, with these directories of the host's."""
    policy = tmp_path / "callgate.yaml"
    containment = {
        "level": "network",
        "memory": "2Gi",
        "pids": 256,
        "mounts": [{"path": str(mount), "read_only": False} for mount in mounts],
    }
    agent = {"timeout": "60s", "rate": "unlimited", "concurrency": 8, "containment": containment}
    agent["tasks"] = "pass"  # else a server is not said to have them
    agent["env"] = {"pass": ["MEMORY_FILE_PATH", *TRUST]}
    policy.write_text(
        json.dumps({"version": 1, "agents": {"real": agent}, "audit": {"path": "audit"}})
    )
    return [sys.executable, "-m", "callgate", "run", "--policy", str(policy), "--", *command]


async def same(
    command: list[str], calls: Calls, tmp_path: Path, *mounts: Path, change: str = "^$"
) -> str:
    """What was answered, which is the same in a sandbox as outside."""
    direct = await exchange(command, calls)

    inside = await exchange(walled(command, tmp_path, *mounts), calls)

    def stable(seen: dict[str, Any]) -> dict[str, str]:
        return {name: re.sub(change, "*", json.dumps(said)) for name, said in seen.items()}

    assert stable(inside) == stable(direct)
    return json.dumps(inside)


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = tmp_path_factory.mktemp("npm")
    why_not = install_npm(modules)
    if why_not:
        pytest.skip(why_not)
    return modules / "node_modules" / "@modelcontextprotocol"


def node(npm: Path, server: str) -> list[str]:
    return ["node", str(npm / server / "dist" / "index.js")]


async def test_the_filesystem_server(npm: Path, place: Path, tmp_path: Path) -> None:
    calls: Calls = [
        ("write_file", {"path": f"{place}/b.txt", "content": "new"}),
        ("read_text_file", {"path": f"{place}/a.txt"}),
        ("search_files", {"path": str(place), "pattern": "*.txt"}),
    ]

    seen = await same(
        [*node(npm, "server-filesystem"), str(place)], calls, tmp_path, npm.parent, place
    )

    assert "hello" in seen


async def test_the_everything_server(npm: Path, tmp_path: Path) -> None:
    calls: Calls = [
        ("echo", {"message": "hi"}),
        ("get-sum", {"a": 1, "b": 2}),
        ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
    ]

    assert "Echo: hi" in await same(node(npm, "server-everything"), calls, tmp_path, npm.parent)


async def test_the_memory_server(
    npm: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_FILE_PATH", str(place / "memory.jsonl"))
    fact = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    calls: Calls = [("read_graph", {}), ("search_nodes", {"query": "Ada"})]
    await exchange(node(npm, "server-memory"), [("create_entities", {"entities": [fact]})])
    (place / "memory.jsonl").chmod(0o666)

    assert "Ada" in await same(node(npm, "server-memory"), calls, tmp_path, npm.parent, place)


async def test_the_sequential_thinking_server(npm: Path, tmp_path: Path) -> None:
    thought = {
        "thought": "first",
        "nextThoughtNeeded": False,
        "thoughtNumber": 1,
        "totalThoughts": 1,
    }
    command = node(npm, "server-sequential-thinking")

    seen = await same(command, [("sequentialthinking", thought)], tmp_path, npm.parent)

    assert "thoughtHistoryLength" in seen


async def test_the_time_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
    convert = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}

    seen = await same(command, [("convert_time", convert)], tmp_path, change=r"\d\d:\d\d:\d\d")

    assert "+9.0h" in seen


def new_repository(place: Path) -> Path:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    (place / "b").mkdir()
    repository = place / "b"
    (repository / "a.txt").write_text("a\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"]
    for words in (["init", "-q"], ["add", "a.txt"], ["commit", "-q", "-m", "first words"]):
        subprocess.run([git, *who, *words], cwd=repository, check=True)
    return repository


async def test_the_git_server(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = new_repository(place)
    # git trusts only what belongs to its user, who is another one in the sandbox.
    for name, value in zip(TRUST, ("1", "safe.directory", "*"), strict=True):
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "mcp_server_git", "--repository", str(repository)]
    path = {"repo_path": str(repository)}

    seen = await same(command, [("git_status", path), ("git_log", path)], tmp_path, place)

    assert "first words" in seen


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"a page of plain words\n"
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


async def test_the_fetch_server(page: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_server_fetch"]

    seen = await same(command, [("fetch", {"url": page})], tmp_path)

    assert "a page of plain words" in seen


async def test_the_sqlite_server(place: Path, tmp_path: Path) -> None:
    command = [str(BIN / "mcp-server-sqlite"), "--db-path", str(place / "a.db")]
    create = "CREATE TABLE IF NOT EXISTS t (n INTEGER)"
    calls: Calls = [
        ("create_table", {"query": create}),
        ("write_query", {"query": "INSERT INTO t SELECT 41 WHERE NOT EXISTS (SELECT 1 FROM t)"}),
        ("read_query", {"query": "SELECT n + 1 AS answer FROM t"}),
    ]
    await exchange(command, calls)
    (place / "a.db").chmod(0o666)

    seen = await same(command, [calls[0], calls[2]], tmp_path, place)

    assert "42" in seen


async def test_the_calculator_server(tmp_path: Path) -> None:
    command = [str(BIN / "mcp-server-calculator")]

    assert "42" in await same(command, [("calculate", {"expression": "6 * 7"})], tmp_path)


async def test_the_duckduckgo_server(page: str, tmp_path: Path) -> None:
    command = [str(BIN / "duckduckgo-mcp-server")]

    seen = await same(command, [("fetch_content", {"url": page})], tmp_path, change=r"\d+")

    assert "serverInfo" in seen


WORKERS = """
const { Worker, isMainThread, parentPort } = require('node:worker_threads');
const { execFileSync } = require('node:child_process');
const net = require('node:net');
if (!isMainThread) { parentPort.postMessage(6 * 7); return; }
const server = net.createServer((peer) => peer.end('heard'));
server.listen('/tmp/node.sock', () => {
  net.connect('/tmp/node.sock').on('data', (said) => {
    server.close();
    new Worker(__filename).on('message', (n) => {
      console.log(n, String(said), String(execFileSync('/bin/echo', ['child'])).trim());
    });
  });
});
"""
JAVA = """
import java.nio.channels.*; import java.util.concurrent.*;
public class Main {
  public static void main(String[] words) throws Exception {
    var pool = Executors.newFixedThreadPool(4);
    int sum = 0;
    for (int i = 0; i < 8; i++) { final int n = i; sum += pool.submit(() -> n).get(); }
    pool.shutdown();
    Selector.open().close();
    new ProcessBuilder("/bin/true").start().waitFor();
    var loop = java.net.NetworkInterface.getByName("lo").isLoopback();
    System.out.println("java " + sum + " " + loop);
  }
}
"""
RUST = """
fn main() {
    let all: i32 = (0..4).map(|n| std::thread::spawn(move || n)).map(|t| t.join().unwrap()).sum();
    println!("rust {all}");
}
"""


def program(*words: str) -> Callable[[Path], tuple[list[str], list[Path]]]:
    return lambda _place: (list(words), [])


def node_workers(place: Path) -> tuple[list[str], list[Path]]:
    (place / "workers.js").write_text(WORKERS)
    return ["node", str(place / "workers.js")], []


def java(place: Path) -> tuple[list[str], list[Path]]:
    (place / "Main.java").write_text(JAVA)
    home = Path(shutil.which("java") or "/java").resolve().parents[1]
    # Debian's links there.
    etc = (home / "conf" / "net.properties").resolve().parent
    return ["java", str(place / "Main.java")], [etc.parent]


def rust(place: Path) -> tuple[list[str], list[Path]]:
    (place / "main.rs").write_text(RUST)
    rustc = shutil.which("rustc") or "rustc"
    found = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, check=True)
    root = Path(found.stdout.decode().strip())
    compile_and_run = f"{root}/bin/rustc -o /tmp/main {place}/main.rs && /tmp/main"
    return ["/bin/sh", "-c", compile_and_run], [root]


def clone(place: Path) -> tuple[list[str], list[Path]]:
    repository = new_repository(place)
    trust = "git config --file /tmp/trust safe.directory '*'"
    command = f"{trust} && GIT_CONFIG_GLOBAL=/tmp/trust git clone -q --no-local {repository} /tmp/c"
    return ["/bin/sh", "-c", f"rm -rf /tmp/c && {command} && cat /tmp/c/a.txt && rm -rf /tmp/c"], []


PROGRAMS = {
    "node with worker threads": ("node", node_workers),
    "java with a thread pool": ("java", java),
    "rustc and what it made": ("rustc", rust),
    "git clone": ("git", clone),
    "perl": ("perl", program("perl", "-e", "use Time::HiRes; print 6 * 7, fork ? wait > 0 : ''")),
    "tar and gzip": ("tar", program("sh", "-c", "tar cz -C /usr/bin true | tar tz")),
    "ip addresses": (
        "python3",
        program("/usr/bin/python3", "-c", "import socket; print(socket.if_nameindex())"),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_the_same(name: str, place: Path) -> None:
    needs, make = PROGRAMS[name]
    if shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    command, mounts = make(place)
    options = ["--level", "network", "--memory", "2Gi", "--pids", "256", "--timeout", "100s"]
    for mount in (place, *mounts):
        options += ["--mount", str(mount)]

    direct = subprocess.run(command, capture_output=True, timeout=PROGRAM_S, check=True)
    run = [sys.executable, "-m", "callgate", "exec", "--json", *options, "--", *command]
    inside = subprocess.run(run, capture_output=True, timeout=PROGRAM_S, check=False)

    said = json.loads(inside.stdout)
    assert (said["stdout"], said["exit_code"]) == (direct.stdout.decode(), 0), said["stderr"]
    assert said["stdout"] != ""
    assert said["effective"]["seccomp"]["status"] == "enforced"
