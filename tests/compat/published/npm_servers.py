"""The servers from npm: the part of the table with JavaScript."""

from __future__ import annotations

from typing import Final

from tests.compat.published.server import BROWSER, KEY, NETWORK, NOWHERE, SLEEP_S, Server

ADA: Final = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
THOUGHT: Final = {"thought": "first", "thoughtNumber": 1, "totalThoughts": 2}

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
