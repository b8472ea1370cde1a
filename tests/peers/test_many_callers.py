"""Callers that use the same ids never get each other's answers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from callgate.peers.mcp_caller import McpClientPeer
from callgate.peers.outbox import Outbox
from tests.conftest import FULL
from tests.peers.helpers import Pipe, answer, call, cancel, parsed, rig, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.helpers import Clock

CALLERS = 100
CALLS = 100_000 if FULL else 10_000
WAVE = 10
"""Calls of each caller at once, under the ids 0 to 9 always."""


async def test_a_hundred_callers_with_the_same_ids_get_their_own_answers(
    tmp_path: Path, clock: Clock
) -> None:
    chance = random.Random(1)  # noqa: S311  # the same one every time
    got = 0
    async with rig(tmp_path, clock) as gate:
        pipes = [Pipe() for _ in range(CALLERS)]
        callers = [
            McpClientPeer(gate.hub, gate.peer, Outbox(gate.hub.wire, pipe), f"caller-{number}")
            for number, pipe in enumerate(pipes)
        ]
        for wave in range(CALLS // CALLERS // WAVE):
            cancelled: set[tuple[int, int]] = set()
            for number, caller in enumerate(callers):
                for own_id in range(WAVE):
                    mark = f"{number}:{wave}:{own_id}"
                    message = call(own_id, arguments={"mark": mark}, progressToken=own_id)
                    caller.receive(json.dumps(message).encode() + b"\n")
                gate.hub.flush()
            for number, caller in enumerate(callers):
                own_id = chance.randrange(WAVE * 4)
                if own_id < WAVE:
                    cancelled.add((number, own_id))
                    caller.receive(json.dumps(cancel(own_id)).encode() + b"\n")
            gate.hub.flush()
            sent = [one for one in gate.to_agent() if one["method"] == "tools/call"]
            chance.shuffle(sent)

            gate.agent(*(echoed(one) for one in sent))

            for number, pipe in enumerate(pipes):
                answers = parsed(pipe.take())
                marks = {one["id"]: one["result"]["mark"] for one in answers}
                got += len(answers)
                assert len(marks) == len(answers)
                assert marks == {
                    own_id: f"{number}:{wave}:{own_id}"
                    for own_id in range(WAVE)
                    if (number, own_id) not in cancelled
                }
        assert gate.hub.stray == 0
        gate.assert_idle()
    assert got > CALLS * 0.9


def echoed(sent: dict[str, Any]) -> dict[str, Any]:
    return answer(sent["id"], text("", mark=sent["params"]["arguments"]["mark"]))
