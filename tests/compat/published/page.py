"""Write `docs/compatibility.md` from the table and from what `make compat` found.

python -m tests.compat.published.page
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tests.compat.published.results import FOUND, HERE, KEPT, here, key, load, store, wanted
from tests.compat.published.table import CLIENTS, PARTNERS, SERVERS
from tests.compat.run import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.compat.published.results import Results

PAGE: Final = ROOT / "docs" / "compatibility.md"
TEMPLATE: Final = KEPT.with_name("page.md")
"""The page's text; `@CLIENTS@` and the like stand where its tables go."""


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def clients(results: Results) -> str:
    """Return the table of clients; every pair in it was equal."""
    rows = []
    for client in CLIENTS:
        for mode in client.modes:
            days = [results[key(client, mode, partner)][0] for partner in PARTNERS]
            name = f"`{client.name}` {client.version}" + (f", `{mode}`" if mode else "")
            rows.append((name, client.registry, min(days), "equal"))
    return table(("client", "from", "tried", ""), rows)


def servers(results: Results) -> str:
    """Return the table of servers; each of them was equal."""
    rows = []
    for server in SERVERS:
        day, protocol = results[key(server)]
        calls = ", ".join(dict.fromkeys(f"`{name}`" for name, _ in server.calls))
        without = f", fails without {server.lacks}" if server.lacks else ""
        cancel = ", a cancel in flight" if server.slow else ""
        name = f"`{server.name}` {server.version}"
        rows.append((name, server.registry, protocol, calls + without + cancel, day, "equal"))
    return table(("server", "from", "protocol", "calls", "tried", ""), rows)


def render(results: Results) -> str:
    """Return the page; each pair of the table must be in `results`."""
    missing = [pair for pair in wanted() if pair not in results]
    if missing:
        raise LookupError(f"not found equal, or in other versions: {', '.join(missing)}")
    text = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "@HERE@": results[HERE][1],
        "@NUMBER@": str(len(SERVERS)),
        "@CLIENTS@": clients(results),
        "@PARTNERS@": ", ".join(f"`{name}`" for name in PARTNERS),
        "@SERVERS@": servers(results),
    }
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def main() -> int:
    """Keep what was found last, and write the page."""
    found = load(FOUND)
    results = {HERE: here(), **{pair: found[pair] for pair in wanted() if pair in found}}
    try:
        page = render(results)
    except LookupError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a command
        return 1
    store(KEPT, results)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
