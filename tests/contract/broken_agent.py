"""The reference agent with one fault: `broken_agent.py FAULT [its own options]`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT = Path(__file__).parents[2] / "examples" / "reference_agent.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("reference_agent", AGENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_agent"] = module
    spec.loader.exec_module(module)
    return module


def never_answers(agent: Any) -> None:
    agent.Mcp._request = lambda *_, **__: None


def takes_any_version(agent: Any) -> None:
    class All(tuple[str, ...]):
        __slots__ = ()

        def __contains__(self, version: object) -> bool:
            return True

    agent.LEGACY = All(agent.LEGACY)


def has_other_tools(agent: Any) -> None:
    tools = {f"other_{name}": tool for name, tool in agent.TOOLS.items()}
    agent.TOOLS.clear()
    agent.TOOLS.update(tools)


def names_a_tool_twice(agent: Any) -> None:
    agent.Mcp._listed = lambda *_: {"name": "same", "inputSchema": {}}


def answers_twice(agent: Any) -> None:
    agent.TOOLS["hello_world"] = agent.TOOLS["answer_twice"]


def calls_fail(agent: Any) -> None:
    def fail(_: Any) -> dict[str, Any]:
        raise agent.Failed("x", "x")

    agent.TOOLS["hello_world"] = (fail, {})


def uses_another_token(agent: Any) -> None:
    plain = agent.Mcp.stream

    def stream(self: Any, call: Any, number: int, count: int) -> None:
        call.token = "another"  # noqa: S105
        plain(self, call, number, count)

    agent.Mcp.stream = stream


def does_not_grow(agent: Any) -> None:
    plain = agent.Mcp.stream
    agent.Mcp.stream = lambda self, call, _, count: plain(self, call, 1, count)


def never_counts(agent: Any) -> None:
    plain = agent.Runtime.stream

    def stream(self: Any, call: Any, number: int, count: int) -> None:
        call.seq = 1
        plain(self, call, number, count)

    agent.Runtime.stream = stream


def ignores_cancel(agent: Any) -> None:
    agent.TOOLS["sleep"] = agent.TOOLS["ignore_cancel"]


def one_at_a_time(agent: Any) -> None:
    def start(self: Any, call: Any, tool: Any) -> bool:
        self.calls[call.key] = call
        self._run(call, tool)
        return True

    agent.Wire.start = start


def writes_noise(agent: Any) -> None:
    plain = agent.Wire.send

    def send(self: Any, message: Any) -> None:
        self.write(b"DEBUG: about to send")
        plain(self, message)

    agent.Wire.send = send


def writes_noise_later(agent: Any) -> None:
    plain = agent.Runtime._call

    def call(self: Any, message: Any, payload: Any) -> None:
        self.write(b"DEBUG: called")
        plain(self, message, payload)

    agent.Runtime._call = call


def serves_all_methods(agent: Any) -> None:
    plain = agent.Mcp._request

    def request(self: Any, method: str, params: Any, own_id: Any, **more: Any) -> Any:
        return {} if method == "no/such/method" else plain(self, method, params, own_id, **more)

    agent.Mcp._request = request


def errors_without_shape(agent: Any) -> None:
    agent.Mcp._error = lambda self, own_id, _: self.send(
        {"jsonrpc": "2.0", "id": own_id, "error": {"code": "no number"}}
    )
    agent.Runtime.fail = lambda self, call, _: self._result(call, "failed")


def dies_of_garbage(agent: Any) -> None:
    def loads(data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            os._exit(3)

    agent.json = type("Json", (), {"loads": staticmethod(loads), "dumps": staticmethod(json.dumps)})


def has_another_token(_: Any) -> None:
    os.environ["CALLGATE_SESSION_TOKEN"] = "another"  # noqa: S105


def goes_on_when_refused(agent: Any) -> None:
    plain = agent.Runtime._read

    def read(self: Any) -> Any:
        message = plain(self)
        if message and message.get("error"):
            message |= {"error": None, "payload": {"session_id": "s", "heartbeat_interval_ms": 50}}
        return message

    agent.Runtime._read = read


def hangs_when_refused(agent: Any) -> None:
    plain = agent.Runtime._read

    def read(self: Any) -> Any:
        message = plain(self)
        return plain(self) if message and message.get("error") else message

    agent.Runtime._read = read


def has_no_namespace(agent: Any) -> None:
    plain = agent.Runtime._described
    agent.Runtime._described = lambda self, name: plain(self, name) | {"tool_id": name}


def forgets_the_ids(agent: Any) -> None:
    plain = agent.Runtime._result

    def result(self: Any, call: Any, status: str, **more: Any) -> None:
        call.envelope.pop("causation_id", None)
        plain(self, call, status, **more)

    agent.Runtime._result = result


def lies_in_heartbeats(agent: Any) -> None:
    plain = agent.Runtime._beat

    def beat(self: Any, interval_s: float) -> None:
        self.lie("wrong", 60)
        plain(self, interval_s)

    agent.Runtime._beat = beat


def hears_late(agent: Any) -> None:
    """No fault: beats were on their way when a call was sent."""
    plain = agent.Runtime._take

    def take(self: Any, message: Any) -> None:
        beat = {"session_id": self._session_id, "uptime_ms": 1, "status": "ok"}
        for _ in range(3):
            self.say("agent.heartbeat", beat | {"inflight_calls": len(self.calls)})
        plain(self, message)

    agent.Runtime._take = take


def has_no_heartbeat(agent: Any) -> None:
    agent.Runtime._beat = lambda *_: None


FAULTS: dict[str, Callable[[Any], None]] = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__ and name != "load"
}

if __name__ == "__main__":
    fault = sys.argv.pop(1)
    module = load()
    FAULTS[fault](module)
    module.main()
