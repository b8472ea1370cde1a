"""The servers from PyPI: the part of the table with Python."""

from __future__ import annotations

from typing import Final

from tests.compat.published.server import NETWORK, NOWHERE, SLEEP_S, Server

THINK: Final = {
    "thread_purpose": "a test",
    "thought": "first",
    "thought_index": 1,
    "tool_recommendation": "",
}
REPOSITORY: Final = ("git", "init", "-q", "{place}/b")

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
        unstable=r"(size|modified)\W+[\d.]+",
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
        unstable=r"execution_time\W+[\d.e-]+",
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
        unstable=r"last_scan_time\W+[\d.]+",
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
