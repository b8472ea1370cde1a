"""A client's call whose budget is not here: the next block of a quota is on its way from the disk.

Synchronous. That is so once in a hundred calls. The call waits for it until its deadline, and
then begins anew: a reload may have given it another lane meanwhile, or denied its tool.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.errors import CallgateError, StateUnavailable
from callgate.limits.deadlines import NEVER
from callgate.peers.inflight import MAX_REQUESTS
from callgate.router import refusals
from callgate.router.queues import deadline_of
from callgate.router.quotas import SHADOW_NS

if TYPE_CHECKING:
    from callgate.limits.quota import Quota
    from callgate.peers.inflight import Pending
    from callgate.peers.mcp_caller import McpClientPeer
    from callgate.protocol.mcp import CallTool
    from callgate.router.lanes import Lane


def wait_for_quota(
    peer: McpClientPeer,
    lane: Lane,
    quota: Quota,
    pending: Pending,
    message: CallTool,
    asked_ns: int,
) -> None:
    """Fetch the next block of `quota`, then begin the call."""
    shadow = quota.spec.shadow

    def go_on(now_ns: int) -> None:
        call = pending.call
        peer.leave(pending)
        peer.waits_no_more(pending)
        if call is not None:
            peer.begin_call(pending, call, now_ns, asked_ns, waited=True)

    def too_late(now_ns: int) -> None:
        if shadow:
            go_on(now_ns)
            return
        unavailable = refusals.plain(StateUnavailable, lane, None)
        peer.refused(pending, peer.refusal(lane, unavailable, now_ns))

    def fetched(error: CallgateError | None) -> None:
        if peer.in_flight.get(pending.id) is not pending or pending.flight is not None:
            return  # it was cancelled, its time is over, or it did not wait so long
        if error is None:
            go_on(monotonic_ns())
        else:
            peer.refused(pending, error)

    now_ns = monotonic_ns()
    deadline_ns = deadline_of(lane, "", message.timeout_ms, None, asked_ns)
    peer.in_flight[pending.id] = pending
    peer.others += 1
    fits = peer.keep_waiting(pending, message) and peer.others <= MAX_REQUESTS
    if not fits or not isinstance(deadline_ns, int):
        too_late(now_ns)
        return
    deadline_ns = min(deadline_ns, now_ns + SHADOW_NS) if shadow else deadline_ns
    if deadline_ns < NEVER:
        pending.timeout = peer.hub.call_later(deadline_ns - now_ns, too_late)
    peer.hub.fetch_quota(lane, fetched)
