"""Limit a process by itself and become the agent: where there is no warden to do it.

`limiter.main` runs as `python -I -S -c <stub> RLIMITS NICE VARIABLES AGENT…`. A limit that is
higher than what the process may have already becomes that, which is stricter. Standard
library only.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

REFUSED = 125
"""As the warden's shim exits."""


def main() -> NoReturn:
    """Apply `NAME=VALUE,…` and the priority, then execute the agent, or exit with `REFUSED`."""
    rlimits, nice, variables, *argv = sys.argv[1:]
    try:
        for pair in rlimits.split(",") if rlimits else ():
            name, _, value = pair.partition("=")
            number = getattr(resource, name)
            most = resource.getrlimit(number)[1]
            least = int(value) if most == resource.RLIM_INFINITY else min(int(value), most)
            resource.setrlimit(number, (least, least))
        os.nice(int(nice))
        # Python itself sets a variable where no locale is set.
        named = set(variables.split("\n"))
        env = {name: value for name, value in os.environ.items() if name in named}
        os.execve(argv[0], argv, env)  # noqa: S606  # no shell
    except (OSError, ValueError) as error:
        os.write(2, f"callgate: {argv[0]} could not be started: {error}\n".encode())
    finally:
        os._exit(REFUSED)
