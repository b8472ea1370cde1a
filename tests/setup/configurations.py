"""Configurations as people have them: one for each trap that a client, an editor or a habit sets.

Written with their line ends, tabs and marks in sight. `wrapped` are the servers that go behind the
gate, by key, with the words that the gate must start; everything else stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A file of a client, and what must be found in it."""

    name: str
    client: str
    file: str
    text: str
    wrapped: dict[str, list[str]]
    left: dict[str, str] = field(default_factory=dict)
    """Servers that are left alone, with their state."""
    bom: bool = False

    @property
    def data(self) -> bytes:
        return (b"\xef\xbb\xbf" if self.bom else b"") + self.text.encode()


FILES = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/notes"]

DESKTOP = """{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": [
        "-y",
        "@modelcontextprotocol/server-filesystem",
        "/srv/notes"
      ]
    }
  }
}
"""

CODEX = """\
model = "gpt-5.2-codex"   # mine
approval_policy = "on-request"

[mcp_servers.docs]
command = "npx"
args = ["-y", "docs-mcp"]
startup_timeout_sec = 60

[mcp_servers.docs.env]
DOCS_TOKEN = "t0psecret"

[profiles.fast]
model = "o4-mini"
"""

CASES = (
    Case(
        "claude desktop",
        "claude-desktop",
        "claude_desktop_config.json",
        DESKTOP,
        {"filesystem": FILES},
    ),
    Case(
        "crlf",
        "claude-desktop",
        "claude_desktop_config.json",
        DESKTOP.replace("\n", "\r\n"),
        {"filesystem": FILES},
    ),
    Case(
        "byte order mark",
        "claude-desktop",
        "claude_desktop_config.json",
        DESKTOP.replace("\n", "\r\n"),
        {"filesystem": FILES},
        bom=True,
    ),
    Case("tabs", "cursor", "mcp.json", DESKTOP.replace("  ", "\t"), {"filesystem": FILES}),
    Case(
        "one line without an end",
        "cursor",
        "mcp.json",
        '{"mcpServers":{"a":{"command":"uvx","args":["mcp-server-time"]}}}',
        {"a": ["uvx", "mcp-server-time"]},
    ),
    Case(
        "several servers and an env",
        "cursor",
        "mcp.json",
        """{
  "mcpServers": {
    "github": {"command": "docker", "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN",
      "ghcr.io/github/github-mcp-server"], "env": {"GITHUB_TOKEN": "ghp_0123456789"}},
    "time": {"env": {}, "args": ["mcp-server-time", "--local-timezone=Europe/Rome"],
             "command": "uvx"},
    "remote": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer abc"}}
  }
}
""",
        {
            "github": [
                "docker",
                "run",
                "-i",
                "--rm",
                "-e",
                "GITHUB_TOKEN",
                "ghcr.io/github/github-mcp-server",
            ],
            "time": ["uvx", "mcp-server-time", "--local-timezone=Europe/Rome"],
        },
        {"remote": "remote"},
    ),
    Case(
        "spaces in paths",
        "claude-desktop",
        "claude_desktop_config.json",
        """{"mcpServers": {
 "my app": {"command": "/Applications/My App.app/Contents/mcp", "args": ["/Users/me/My Files"]},
 "bare": {"command": "/opt/my tools/server"}
}}""",
        {
            "my app": ["/Applications/My App.app/Contents/mcp", "/Users/me/My Files"],
            "bare": ["/opt/my tools/server"],
        },
    ),
    Case(
        "no arguments",
        "claude-desktop",
        "claude_desktop_config.json",
        '{\n  "mcpServers": {\n    "x": {\n      "command": "my-server"\n    }\n  }\n}\n',
        {"x": ["my-server"]},
    ),
    Case(
        "empty arguments",
        "claude-desktop",
        "claude_desktop_config.json",
        '{"mcpServers": {"x": {"command": "my-server", "args": [ ], "env": null}}}',
        {"x": ["my-server"]},
    ),
    Case("no servers", "claude-desktop", "claude_desktop_config.json", '{"mcpServers": {}}\n', {}),
    Case(
        "no key for servers",
        "claude-desktop",
        "claude_desktop_config.json",
        '{"globalShortcut": ""}',
        {},
    ),
    Case(
        "claude code, user and local",
        "claude-code",
        ".claude.json",
        """{
  "numStartups": 412, "tipsHistory": {"shift-enter": 12},
  "projects": {
    "/home/me/shop": {"allowedTools": [], "mcpServers": {
      "db": {"type": "stdio", "command": "uvx", "args": ["mcp-server-sqlite"], "env": {}}}},
    "/home/me/blog": {"mcpServers": {}}
  },
  "mcpServers": {"db": {"type": "stdio", "command": "npx", "args": ["-y", "db-mcp"], "env": {}},
    "docs": {"type": "http", "url": "https://docs.example.com/mcp"}},
  "cost": 1.50, "big": 1e400, "last": 12345678901234567890
}
""",
        {
            "projects//home/me/shop/mcpServers/db": ["uvx", "mcp-server-sqlite"],
            "mcpServers/db": ["npx", "-y", "db-mcp"],
        },
        {"docs": "remote"},
    ),
    Case(
        "a project's file with variables",
        "claude-code",
        "p/.mcp.json",
        """{
  "mcpServers": {
    "api": {
      "command": "${API_HOME:-/opt/api}/bin/server",
      "args": ["--token", "${API_TOKEN}", "--root", "${PWD}"],
      "timeout": 600000
    }
  }
}
""",
        {
            "api": [
                "${API_HOME:-/opt/api}/bin/server",
                "--token",
                "${API_TOKEN}",
                "--root",
                "${PWD}",
            ]
        },
    ),
    Case(
        "cursor's variables",
        "cursor",
        "p/.cursor/mcp.json",
        '{"mcpServers": {"w": {"command": "${workspaceFolder}/run", '
        '"args": ["${env:TOKEN}", "${userHome}"]}}}',
        {"w": ["${workspaceFolder}/run", "${env:TOKEN}", "${userHome}"]},
    ),
    Case(
        "vs code with comments, inputs and trailing commas",
        "vscode",
        "p/.vscode/mcp.json",
        """\
// Servers of this workspace.
{
\t"inputs": [
\t\t{"type": "promptString", "id": "key", "description": "Key", "password": true}, // asked once
\t],
\t"servers": {
\t\t/* the "search" server: { not a brace */
\t\t"search": {
\t\t\t"type": "stdio",
\t\t\t"command": "npx", // by npm
\t\t\t"args": [ // all of them
\t\t\t\t"-y", "search-mcp", /* a, b */
\t\t\t\t"${input:key}",
\t\t\t],
\t\t\t"cwd": "${workspaceFolder}",
\t\t\t"envFile": "${workspaceFolder}/.env",
\t\t},
\t\t"web": {"type": "sse", "url": "http://localhost:1/sse",},
\t},
}
""",
        {"search": ["npx", "-y", "search-mcp", "${input:key}"]},
        {"web": "remote"},
    ),
    Case(
        "vs code's user file, sandboxed",
        "vscode",
        "Code/User/mcp.json",
        '{\n\t"servers": {\n\t\t"s": {\n\t\t\t"command": "node",\n\t\t\t"args": ["s.js"],\n'
        '\t\t\t"sandboxEnabled": true\n\t\t}\n\t}\n}',
        {},
        {"s": "unclear"},
    ),
    Case(
        "windsurf, disabled and remote",
        "windsurf",
        "mcp_config.json",
        """{
    "mcpServers": {
        "on": {"command": "uvx", "args": ["a"], "disabled": false, "disabledTools": ["x"]},
        "off": {"command": "uvx", "args": ["b"], "disabled": true},
        "far": {"serverUrl": "https://example.com/sse"}
    }
}
""",
        {"on": ["uvx", "a"]},
        {"off": "disabled", "far": "remote"},
    ),
    Case("codex", "codex", "config.toml", CODEX, {"docs": ["npx", "-y", "docs-mcp"]}),
    Case(
        "codex with crlf",
        "codex",
        "config.toml",
        CODEX.replace("\n", "\r\n"),
        {"docs": ["npx", "-y", "docs-mcp"]},
    ),
    Case(
        "codex with a byte order mark",
        "codex",
        "config.toml",
        CODEX,
        {"docs": ["npx", "-y", "docs-mcp"]},
        bom=True,
    ),
    Case(
        "codex, every way to write a table",
        "codex",
        "config.toml",
        """\
[mcp_servers]
inline = { command = "uvx", args = ["a"], env = { K = "v" } }
short = {command='/opt/my tools/x'}
dotted.command = "npx"
dotted.args = [ ]

[mcp_servers.lines]
args = [  # the arguments
    "-y",      # yes
    'C:\\\\keep "this"',
]
command = 'npx'  # by npm

[mcp_servers."odd name"]
  command = "one"   # nothing else

[mcp_servers.web]
url = "https://example.com/mcp"
bearer_token_env_var = "TOKEN"

[mcp_servers.off]
command = "x"
enabled = false
""",
        {
            "inline": ["uvx", "a"],
            "short": ["/opt/my tools/x"],
            "dotted": ["npx"],
            "lines": ["npx", "-y", 'C:\\\\keep "this"'],
            "odd name": ["one"],
        },
        {"web": "remote", "off": "disabled"},
    ),
    Case(
        "gemini",
        "gemini",
        "settings.json",
        """{
  "theme": "GitHub", // seen in the evening
  "mcpServers": {
    "py": {"command": "python", "args": ["-m", "srv"], "cwd": "./srv", "timeout": 15000,
           "env": {"API_KEY": "$MY_KEY"}, "trust": true},
    "http": {"httpUrl": "http://localhost:3000/mcp"}
  }
}
""",
        {"py": ["python", "-m", "srv"]},
        {"http": "remote"},
    ),
    Case(
        "zed, new and old shape, extensions",
        "zed",
        "settings.json",
        """\
// Zed settings
//
{
  "buffer_font_size": 15.0,
  "context_servers": {
    "new": {"source": "custom", "enabled": true, "command": "npx", "args": ["-y", "n"], "env": {}},
    "old": {"command": {"path": "/opt/bin/old", "args": ["--stdio"], "env": {"A": "1"}}},
    "bare": {"command": {"path": "/opt/bin/bare"}},
    "mcp-server-context7": {"source": "extension", "settings": {}},
  },
  "ssh_connections": [],
}
""",
        {"new": ["npx", "-y", "n"], "old": ["/opt/bin/old", "--stdio"], "bare": ["/opt/bin/bare"]},
        {"mcp-server-context7": "unclear"},
    ),
    Case(
        "cline, both shapes",
        "cline",
        "cline_mcp_settings.json",
        """{
  "mcpServers": {
    "a": {"autoApprove": ["read"], "disabled": false, "timeout": 60, "type": "stdio",
      "command": "node", "args": ["/home/me/a/build/index.js"]},
    "b": {"transport": {"type": "stdio", "command": "uvx", "args": ["b"]}, "disabled": false}
  }
}""",
        {"a": ["node", "/home/me/a/build/index.js"], "b": ["uvx", "b"]},
    ),
    Case(
        "opencode, lists as commands",
        "opencode",
        "opencode.jsonc",
        """{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "one": {"type": "local", "command": ["npx", "-y", "one"], "enabled": true,
            "environment": {"TOKEN": "{env:TOKEN}"}},
    "alone": {"type": "local", "command": [
        "alone",
      ]},
    "off": {"type": "local", "command": ["x"], "enabled": false},
    "far": {"type": "remote", "url": "https://example.com/mcp"},
    "none": {"type": "local", "command": []},
  },
}
""",
        {"one": ["npx", "-y", "one"], "alone": ["alone"]},
        {"off": "disabled", "far": "remote", "none": "unclear"},
    ),
    Case(
        "opencode v2",
        "opencode",
        "opencode.json",
        '{"mcp": {"servers": {"two": {"type": "local", "command": ["uvx", "two"]}}}}',
        {"two": ["uvx", "two"]},
    ),
    Case(
        "already behind the gate",
        "cursor",
        "mcp.json",
        """{"mcpServers": {
  "hand": {"command": "callgate", "args": ["run", "--policy", "my.yaml", "--", "uvx", "h"]},
  "path": {"command": "/opt/bin/callgate", "args": ["run", "--", "uvx", "p"]},
  "uvx": {"command": "uvx", "args": ["callgate", "run", "--", "uvx", "u"]},
  "open": {"command": "uvx", "args": ["o"]}
}}""",
        {"open": ["uvx", "o"]},
        {"hand": "wrapped", "path": "wrapped", "uvx": "wrapped"},
    ),
    Case(
        "unicode, names that are not agents'",
        "cursor",
        "mcp.json",
        """{"mcpServers": {
  "日本語": {"command": "/opt/ツール/サーバ", "args": ["ü", "\\u00e9\\ud83d\\ude00", "😀"]},
  "--policy": {"command": "a"},
  "a b": {"command": "b"}, "a/b": {"command": "c"}
}}
""",
        {
            "日本語": ["/opt/ツール/サーバ", "ü", "é😀", "😀"],
            "--policy": ["a"],
            "a b": ["b"],
            "a/b": ["c"],
        },
    ),
    Case(
        "escapes that must stay as they are written",
        "cursor",
        "mcp.json",
        '{"mcpServers": {"e": {"command": "C:\\\\x\\u003dy\\/z", "args": ["\\u0041", "a\\"b"]}}}',
        {"e": ["C:\\x=y/z", "A", 'a"b']},
    ),
    Case(
        "json5",
        "other",
        "servers.json5",
        """{
  mcpServers: {
    five: { command: 'npx', args: ['-y', 'say "hi"', 'it\\'s'], retries: +.5, mask: 0xFF, },
  },
}
""",
        {"five": ["npx", "-y", 'say "hi"', "it's"]},
    ),
    Case(
        "arguments before the command, and a server's own double dash",
        "cursor",
        "mcp.json",
        '{"mcpServers": {"d": {"args": ["--", "run", "--", "x"], "command": "npx"}}}',
        {"d": ["npx", "--", "run", "--", "x"]},
    ),
    Case(
        "one text for all",
        "cursor",
        "mcp.json",
        '{"mcpServers": {"t": {"command": "npx -y thing"}, "n": {"command": 7}, "l": []}}',
        {},
        {"t": "unclear", "n": "unclear", "l": "unclear"},
    ),
    Case(
        "a config of continue",
        "other",
        "config.yaml",
        """\
name: mine
mcpServers:
  time:
    command: uvx   # by uv
    args:
      - mcp-server-time
      - "--local-timezone=Europe/Rome"
    env: {TOKEN: "${{ secrets.T }}"}
  flow: {command: npx, args: [-y, flow-mcp]}
  quoted:
    command: "/opt/my tools/x"
  far:
    url: https://example.com/mcp
""",
        {
            "time": ["uvx", "mcp-server-time", "--local-timezone=Europe/Rome"],
            "flow": ["npx", "-y", "flow-mcp"],
            "quoted": ["/opt/my tools/x"],
        },
        {"far": "remote"},
    ),
    Case(
        "a config of goose",
        "other",
        "goose.yaml",
        """\
extensions:
  developer: {type: builtin, enabled: true}
  fetch:
    type: stdio
    cmd: uvx
    args: []
    enabled: true
    timeout: 300
""",
        {"fetch": ["uvx"]},
        {"developer": "unclear"},
    ),
)
