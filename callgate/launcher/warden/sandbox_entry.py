"""The last step in a sandbox: build landlock around oneself, take the terminal, be the agent.

bwrap has made the namespaces, the mounts and the filter before this runs. Until it is done
standard error is the warden's report, so that what bwrap complains of is not mistaken for
the agent's words; the agent's own standard error comes as another descriptor. bwrap keeps
the report open for as long as it lives. So that the warden still learns of the moment of
exec, it is handed a fresh pipe that nobody else has and that exec closes.

Stdlib only, and of ours `libc`, `landlock`, `warden_messages` and `shim`: the code of these
modules is handed in, because callgate itself is not visible here.
"""

from __future__ import annotations

import _socket
import os

from callgate.launcher.warden.landlock import restrict
from callgate.launcher.warden.shim import EXECUTING, REFUSED, describe, limit, take_terminal, tell
from callgate.launcher.warden.warden_messages import pack_fds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(job: dict[str, Any], stderr: int) -> NoReturn:
    """Be the agent, or report why not and exit."""
    report = os.dup(2)
    stage = "landlock"
    try:
        if job["landlock"] is not None:
            version, writable, tcp, scoped, sockets, programs = job["landlock"]
            rules = {"scoped": scoped, "sockets": sockets, "programs": programs}
            restrict(version, writable, tcp, **rules)
        stage = "rlimit"
        limit(job["rlimits"])
        stage = "stdio"
        os.dup2(stderr, 2)
        os.close(stderr)
        if job["terminal"]:
            stage = "terminal"
            os.setsid()
            take_terminal()
        stage = "exec"
        report = _announce(report)
        # Python itself sets a variable where no locale is set.
        env = {name: value for name, value in os.environ.items() if name in job["variables"]}
        os.execve(job["argv"][0], job["argv"], env)  # noqa: S606  # no shell
    except BaseException as error:  # noqa: BLE001  # whatever it is, it must not run on
        tell(report, stage, describe(error))
    finally:
        os._exit(REFUSED)


def _announce(report: int) -> int:
    """Send the warden a pipe; what happens to our end of it is what happens to exec."""
    reading, writing = os.pipe()
    control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack_fds([reading]))]
    _socket.socket(fileno=report).sendmsg([EXECUTING], control)
    os.close(reading)
    return writing
