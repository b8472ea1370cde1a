"""The table of MCP clients: where each keeps its servers, under which keys, and what it does then.

Pure: data, and one function that fills paths in. The facts, their sources and their age stand in
`docs/in-front-of-your-servers.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from callgate.setup.servers import ANY, Path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SERVERS: Final = (("mcpServers",),)
_FIELD: Final = re.compile(r"\{(\w+)\}")
_CODE: Final = ("Code", "Code - Insiders", "VSCodium")
_OLD_CLINE: Final = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


@dataclass(frozen=True, slots=True)
class Client:
    """One MCP client.

    A path has `{home}`, `{config}` (where programs with a window keep their settings), `{xdg}`, or
    a variable. Of the paths in one tuple the first counts whose fields are all set: so a variable
    moves a file.
    """

    name: str
    title: str
    user: tuple[tuple[str, ...], ...]
    project: tuple[str, ...]
    keys: tuple[Path, ...]
    before: str = ""
    """What its user does before the file is changed."""
    after: str = ""
    """What its user does afterwards."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file where a client may keep servers; `path` may hold `*` for one part."""

    client: Client
    path: str
    project: str | None = None
    """The directory of the project, or None: the user's own file."""


CLIENTS: Final = (
    Client(
        "claude-desktop",
        "Claude Desktop",
        (("{config}/Claude/claude_desktop_config.json",),),
        (),
        _SERVERS,
        before="quit Claude Desktop entirely (also in the tray): it rewrites this file",
        after="start Claude Desktop",
    ),
    Client(
        "claude-code",
        "Claude Code",
        (("{CLAUDE_CONFIG_DIR}/.claude.json", "{home}/.claude.json"),),
        (".mcp.json",),
        (*_SERVERS, ("projects", ANY, "mcpServers")),
        before="end all sessions of Claude Code: it rewrites its user file while it runs",
        after="start Claude Code; it asks you to approve a project's changed servers again",
    ),
    Client(
        "cursor",
        "Cursor",
        (("{home}/.cursor/mcp.json",),),
        (".cursor/mcp.json",),
        _SERVERS,
        after="in Cursor's settings, under MCP, approve the servers again: until then they are off",
    ),
    Client(
        "vscode",
        "VS Code",
        (
            *((f"{{config}}/{name}/User/mcp.json",) for name in _CODE),
            *((f"{{config}}/{name}/User/profiles/*/mcp.json",) for name in _CODE),
            ("{home}/.vscode-server/data/User/mcp.json",),
        ),
        (".vscode/mcp.json",),
        (("servers",),),
        after="run `MCP: List Servers` in VS Code, start each server again and trust it",
    ),
    Client(
        "windsurf",
        "Windsurf (Devin Desktop)",
        (("{home}/.codeium/windsurf/mcp_config.json",), ("{xdg}/devin/mcp_config.json",)),
        (".devin/mcp_config.json",),
        _SERVERS,
        after="press Refresh in its list of MCP servers",
    ),
    Client(
        "codex",
        "Codex",
        (("{CODEX_HOME}/config.toml", "{home}/.codex/config.toml"),),
        (".codex/config.toml",),
        (("mcp_servers",),),
        after="start Codex again",
    ),
    Client(
        "gemini",
        "Gemini CLI",
        (("{GEMINI_CLI_HOME}/.gemini/settings.json", "{home}/.gemini/settings.json"),),
        (".gemini/settings.json",),
        _SERVERS,
        after="start Gemini CLI again",
    ),
    Client(
        "zed",
        "Zed",
        (("{xdg}/zed/settings.json",),),
        (".zed/settings.json",),
        (("context_servers",),),
        after="nothing: Zed starts changed servers by itself",
    ),
    Client(
        "cline",
        "Cline",
        (
            (
                "{CLINE_MCP_SETTINGS_PATH}",
                "{CLINE_DATA_DIR}/settings/cline_mcp_settings.json",
                "{CLINE_DIR}/data/settings/cline_mcp_settings.json",
                "{home}/.cline/data/settings/cline_mcp_settings.json",
            ),
            *((f"{{config}}/{name}/{_OLD_CLINE}",) for name in _CODE),
        ),
        (),
        _SERVERS,
        after="nothing: Cline starts changed servers by itself",
    ),
    Client(
        "opencode",
        "opencode",
        (
            ("{xdg}/opencode/opencode.jsonc",),
            ("{xdg}/opencode/opencode.json",),
            ("{OPENCODE_CONFIG}",),
            ("{OPENCODE_CONFIG_DIR}/opencode.jsonc",),
            ("{OPENCODE_CONFIG_DIR}/opencode.json",),
        ),
        (
            "opencode.jsonc",
            "opencode.json",
            ".opencode/opencode.jsonc",
            ".opencode/opencode.json",
        ),
        (("mcp",), ("mcp", "servers")),
        after="start opencode again",
    ),
)

OTHER: Final = Client(
    "other",
    "another client",
    (),
    (),
    (
        *_SERVERS,
        ("servers",),
        ("context_servers",),
        ("mcp_servers",),
        ("mcp",),
        ("mcp", "servers"),
        ("extensions",),
        ("projects", ANY, "mcpServers"),
    ),
    after="start the client again; it may ask you to approve the servers again",
)
"""For `wrap FILE`: every shape that is known, wherever the file is."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a user's files are: directories, and the variables that move them."""

    home: str
    config: str
    xdg: str
    variables: Mapping[str, str]


def home_of(platform: str, home: str, variables: Mapping[str, str]) -> Home:
    """Return the directories of a user on a platform (`sys.platform`)."""
    given = variables.get("XDG_CONFIG_HOME", "")
    xdg = given if given.startswith("/") else f"{home}/.config"
    config = f"{home}/Library/Application Support" if platform == "darwin" else xdg
    return Home(home, config, xdg, variables)


def places(home: Home, project: str | None) -> Iterator[Place]:
    """Yield the user's files of each client, then a project's, whether they exist or not."""
    for client in CLIENTS:
        for alternatives in client.user:
            filled = [path for each in alternatives if (path := _filled(each, home)) is not None]
            if filled:
                yield Place(client, filled[0])
    if project is not None:
        for client in CLIENTS:
            for path in client.project:
                yield Place(client, str(PurePath(project, path)), project)


def _filled(template: str, home: Home) -> str | None:
    fields = {"home": home.home, "config": home.config, "xdg": home.xdg}
    names = _FIELD.findall(template)
    values = {name: fields.get(name) or home.variables.get(name) for name in names}
    if not all(values.values()):
        return None
    return _FIELD.sub(lambda found: values[found[1]] or "", template)


def place_of(path: str, home: Home) -> Place:
    """Return what a file is: a client's, a project's, or one of another client."""
    for place in places(home, None):
        if PurePath(path).match(place.path):
            return place
    for client in CLIENTS:
        for each in client.project:
            if path.endswith(f"/{each}"):
                return Place(client, path, path.removesuffix(f"/{each}") or "/")
    return Place(OTHER, path)
