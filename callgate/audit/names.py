"""Who and what may be named in the audit.

Pure. Names of the policy are shown; all others could carry a secret, so a caller becomes a
pseudonym that is stable within one install and a tool is left out.
"""

from __future__ import annotations

import re
from hmac import digest
from typing import TYPE_CHECKING, Final

from callgate.model import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Container

_TOOL: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}", re.ASCII).fullmatch


def caller_name(caller: str, named: Container[str], key: bytes) -> str:
    """The caller as it may be shown: by name if the policy knows it, else a pseudonym."""
    if caller == ANONYMOUS or caller in named:
        return caller
    return pseudonym(caller, key)


def pseudonym(caller: str, key: bytes) -> str:
    """`~` and 12 hex digits: the same for the same caller and key, and not to be undone."""
    return "~" + digest(key, caller.encode("utf-8", "surrogatepass"), "sha256").hex()[:12]


def safe_tool(name: str) -> str | None:
    """The tool's name if it is made of harmless characters only."""
    return name if _TOOL(name) else None
