"""What the tables of servers are made of: a published server, and how it is tried.

`{place}` is a directory that is made anew for each session, home and working directory of the
server. All servers are given a proxy that nobody listens on, so that what wants a network fails
at once and in the same way.
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
