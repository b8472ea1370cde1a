"""Write the first policy: one agent for each wrapped server, and figures that surprise nobody.

The figures of profile `guarded` are there in shadow: nothing is refused, and the audit records what
would have been. `enforce` enforces them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callgate.files import draft_of, replace_file, secure_directory
from callgate.setup.formats.nodes import Refused, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE: Final = "callgate.yaml"
SCHEMA_FILE: Final = "callgate.schema.json"
FIGURES: Final = ("timeout", "concurrency", "rate")
"""Of profile `guarded`. Not its queue: who waits is not surprised, who is refused is."""

_PLAIN: Final = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def policy_path(xdg: str) -> Path:
    """Return where the user's policy is."""
    return Path(xdg) / "callgate" / FILE


def policy_text(
    agents: Sequence[str], audit: str, figures: Mapping[str, object], *, enforce: bool
) -> str:
    """Return the policy; `figures` are the guarded values of `FIGURES`."""
    mode = "enforce" if enforce else "shadow"
    said = (
        "# The figures of profile `guarded`, enforced. `mode: shadow` would only record them."
        if enforce
        else "# The figures of profile `guarded`, in shadow: nothing is refused for them, and the\n"
        "# audit records what would have been. `mode: enforce` enforces a figure."
    )
    limits = "".join(
        f"  {name}: {{limit: {value}, mode: {mode}}}\n" for name, value in figures.items()
    )
    named = "".join(f"  {_key(agent)}:\n" for agent in agents)
    return f"""# yaml-language-server: $schema={SCHEMA_FILE}
# Written once by `callgate init`; from now on it is yours, and never overwritten.
# A running gate reads it again when you save it.
#   callgate check FILE                  finds mistakes, with line and column
#   callgate explain FILE --agent NAME   shows what holds for a server, and why
version: 1

# For a person at a client: what worked without a gate goes on working.
profile: interactive

{said}
defaults:
{limits}
audit:
  path: {quoted(audit)}
  on_failure: drop

# One agent for each server, under its name in your clients. For example:
#   github:
#     tools:
#       "delete_*": deny
#       search_code: {{rate: 10/minute}}
agents:{" {}" if not agents else ""}
{named}"""


def _key(agent: str) -> str:
    """Return a name in quotes if YAML could read it as something else."""
    plain = _PLAIN.fullmatch(agent) and agent.lower() not in _WORDS
    return agent if plain else quoted(agent)


def write_policy(path: Path, text: str, schema: str) -> bool:
    """Write the schema and the policy; return False if a policy is there already.

    The policy appears whole or not at all. Raises `Refused`.
    """
    try:
        secure_directory(path.parent, make=True)
        replace_file(path.with_name(SCHEMA_FILE), schema.encode())
        with draft_of(path, text.encode()) as draft:
            path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError as error:
        raise Refused(f"{path}: the policy cannot be written: {error.strerror}") from None
    return True
