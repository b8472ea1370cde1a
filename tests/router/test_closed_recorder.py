"""A closed log refuses; it never means that no audit is wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from callgate.audit.events import admitted
from callgate.audit.verify import verify
from callgate.errors import AuditUnavailable
from tests.audit.helpers import FRAGMENT, begin, call_id, end, events, open_log
from tests.router.helpers import Gate, call, call_events, flights, policy, running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("fail_closed", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_a_closed_log_refuses_and_writes_nothing(
    tmp_path: Path, *, fail_closed: bool, staged: bool
) -> None:
    log = open_log(tmp_path, fail_closed=fail_closed)
    begin(log, 1)
    end(log, 1)
    log.close()
    before = events(tmp_path)

    with pytest.raises(AuditUnavailable) as refused:
        (log.stage if staged else log.record)(admitted(FRAGMENT, call_id(2)), 1)

    assert refused.value.retryable
    log.flush()
    log.close()
    assert events(tmp_path) == before
    assert verify(tmp_path).ok


async def test_a_call_that_comes_back_to_a_lane_of_a_former_policy_is_refused(
    tmp_path: Path,
) -> None:
    gate = Gate()
    made = policy(audit=tmp_path / "old")
    async with running(made, tmp_path, {"web/gate": gate}) as router:
        task = asyncio.create_task(router.call(call("web/gate")))
        await gate.entered()
        (flight,) = flights(router)
        await router.reload(policy(audit=tmp_path / "new"))
        gate.open()
        await task
        former = flight.lane.recorder
        assert former.is_done

        with pytest.raises(AuditUnavailable):
            former.admitted(flight, 0)

        assert former.dropped == 0
    assert call_events(tmp_path / "old") == ["admitted", "completed"]
