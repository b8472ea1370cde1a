"""Keep a running gate under what its policy file says.

A file is used once two looks at it agree, if it names the running agent; also where it allows
more than before. Then what was loosened is said and recorded with severity `security`. A file
that no longer names the agent is not used: an agent that has vanished from its policy would be
under the profile's defaults, where a tool that was denied may be called. It keeps its rules until
it is stopped.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from callgate.audit.events import MAX_NAME_CHARS
from callgate.cli.unusable import Unusable
from callgate.cli.watch import in_daemon_thread, watch
from callgate.errors import CallgateError
from callgate.policy import Policy, PolicyError
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from callgate.gate.stdio import StdioGate
    from callgate.launcher.plugins import Launchers
    from callgate.model import LaunchSpec
    from callgate.policy.loosened import Loosened
    from callgate.router import Router

MAX_TOLD: Final = 20
"""Of what one reload loosened, on stderr and in the audit each; then a count of the rest."""


class Reload:
    """Puts what the file now says into force, or says why not."""

    def __init__(
        self,
        router: Router,
        gate: StdioGate,
        launcher: Launchers,
        make_spec: Callable[[Policy], tuple[LaunchSpec, Sequence[bytes]]],
        say: Callable[[str], None],
    ) -> None:
        """`make_spec` returns how the agent is launched and its secrets, or raises `Unusable`.

        It may look at files: it is called in a thread.
        """
        self._router = router
        self._gate = gate
        self._agent = gate.agent_name
        self._launcher = launcher
        self._make_spec = make_spec
        self._say = say

    async def use(self, found: Policy | PolicyError) -> None:
        """Take a new policy, or the reason why there is none."""
        if isinstance(found, PolicyError):
            self._keep(str(found), found)
            return
        if found.kept:
            unusable = PolicyError(found.kept, source=str(found.source))
            self._router.reload_failed(unusable)
            self._say(f"a manifest cannot be used; what it said before holds\n{unusable}")
        former = self._router.policy
        if self._agent in former.agents and self._agent not in found.agents:
            self._gate.hub.record("policy.reload_failed", agent=self._agent, code="agent.missing")
            self._say(
                f"the policy no longer names agent {quoted(self._agent)}, which keeps its rules "
                f"until it is stopped: those of policy {former.revision}"
            )
            return
        try:
            spec, secrets = await in_daemon_thread(partial(self._make_spec, found))
            self._launcher.named(spec)
            listed = self._router.listed_tools(self._agent)
            compare = partial(found.loosened, former, self._agent, listed)
            loosened = await in_daemon_thread(compare)
            await self._gate.reload(found, spec, secrets)
        except (OSError, ValueError, Unusable, CallgateError) as error:
            self._keep(str(error) if isinstance(error, Unusable) else quoted(str(error)), None)
            return
        self._say(f"policy {found.revision} is in force")
        if loosened:
            self._record(loosened)
            self._say(_told(loosened))

    def _record(self, loosened: list[Loosened]) -> None:
        for each in loosened[:MAX_TOLD]:
            limit = quoted(each.text, MAX_NAME_CHARS)
            self._gate.hub.record("policy.loosened", agent=self._agent, limit=limit)
        more = len(loosened) - MAX_TOLD
        if more > 0:
            self._gate.hub.record("policy.loosened", agent=self._agent, count=more)

    def _keep(self, why: str, error: PolicyError | None) -> None:
        self._router.reload_failed(error)
        self._say(f"the policy stays as it was\n{why}")


def _told(loosened: list[Loosened]) -> str:
    shown = [f"  {quoted(each.text)}" for each in loosened[:MAX_TOLD]]
    if len(loosened) > MAX_TOLD:
        shown.append(f"  and {len(loosened) - MAX_TOLD} more")
    return "\n".join(["it allows more than the policy before it:", *shown])


async def follow(path: Path, since: Policy, reload: Reload) -> None:
    """Reload the policy when it changes, or on SIGHUP; until cancelled."""
    hung_up = asyncio.Event()
    with suppress(NotImplementedError, ValueError, AttributeError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    async for found in watch(path, since=since, asked=hung_up):
        await reload.use(found)
