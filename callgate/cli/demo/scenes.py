"""What the demonstration tries, and what must come of it.

Each scene plays one thing that goes wrong with agents and checks one claim of the gate's. A
scene says what it saw whether the claim held or not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from callgate.cli.demo.client import Answer, Client

SECRET = "hunter2-correct-horse-battery"  # noqa: S105  # the canary of the last scene
MEMORY_MIB = 160

POLICY = """\
# What the demonstration runs under. Change a line and run `callgate demo` again.
version: 1
agents:
  rogue:
    command: {command}
    timeout: 5s
    concurrency: 16
    queue: 20
    rate: 600/minute
    max_output_bytes: 1MiB
    cancel_grace: 1s
    tools:
      search: {{rate: {{limit: 5/second, burst: 5}}}}
      hang: {{timeout: 1s}}
      slow: {{concurrency: 2}}
      "delete_*": deny
    containment: {{level: privileged, memory: {memory}Mi, monitor_interval: 200ms, \
cpu: unlimited, pids: unlimited, disk: unlimited}}
    env: {{pass: [PATH, HOME, LANG, PYTHONPATH]}}
    restart: {{on: failure, max: 5, backoff: 100ms..1s}}
audit: {{path: audit/}}
"""


class Seen(NamedTuple):
    """What a scene saw of its claim."""

    text: str
    kept: bool


def write_policy(folder: Path) -> Path:
    """The policy file of the demonstration."""
    file = folder / "policy.yaml"
    command = json.dumps([sys.executable, "-m", "callgate.cli.demo.agent"])
    file.write_text(POLICY.format(command=command, memory=MEMORY_MIB), encoding="utf-8")
    return file


async def offers_only_what_is_allowed(client: Client) -> Seen:
    """The handshake, and a tool that is denied."""
    tools = await client.tools()
    answer = await client.call("delete_all")
    return Seen(
        f"{len(tools)} tools offered; delete_all: {answer.code}",
        "delete_all" not in tools and answer.code == "policy.denied",
    )


async def passes_ordinary_calls(client: Client) -> Seen:
    """What most calls are."""
    since = time.perf_counter()
    answers = [await client.call("search", query="owls") for _ in range(3)]
    each_ms = (time.perf_counter() - since) / len(answers) * 1000
    good = all(answer.code == "ok" for answer in answers)
    return Seen(f"{len(answers)} calls, {each_ms:.1f} ms each", good)


async def sheds_a_burst(client: Client) -> Seen:
    """More than the rate, then a caller that obeys."""
    await asyncio.sleep(1.1)
    answers = await _all(client, "search", 12)
    codes = Counter(answer.code for answer in answers)
    wait_ms = max((answer.retry_after_ms or 0 for answer in answers), default=0)
    await asyncio.sleep(wait_ms / 1000)
    after = await client.call("search", query="owls")
    return Seen(
        f"{codes['ok']} of 12 let in, then after {wait_ms} ms: {after.code}",
        5 <= codes["ok"] < 12 and codes["ok"] + codes["limit.rate"] == 12 and after.code == "ok",  # noqa: PLR2004
    )


async def bounds_time(client: Client) -> Seen:
    """A tool that never answers."""
    answer = await client.call("hang")
    heard = await client.call("cancelled")
    return Seen(
        f"{answer.code} after {answer.seconds:.2f} s; cancels heard by the agent: {heard.text}",
        answer.code == "limit.timeout" and answer.seconds < 1.5 and heard.text == "1",  # noqa: PLR2004
    )


async def queues_what_is_too_much_at_once(client: Client) -> Seen:
    """Six slow calls where two fit."""
    since = time.perf_counter()
    answers = await _all(client, "slow", 6)
    seconds = time.perf_counter() - since
    good = all(answer.code == "ok" for answer in answers)
    return Seen(
        f"6 calls of 0.3 s, two at a time: {seconds:.2f} s",
        good and seconds >= 0.9,  # noqa: PLR2004
    )


async def carries_a_cancel(client: Client) -> Seen:
    """The client changes its mind."""
    own_id = await client.begin("hang")
    await asyncio.sleep(0.2)
    await client.cancel(own_id)
    heard = await client.call("cancelled")
    return Seen(f"cancels heard by the agent: {heard.text}", heard.text == "2")


async def drops_what_is_too_large(client: Client) -> Seen:
    """An answer of two megabytes, noise on stdout, and then a good call."""
    large = await client.call("flood")
    noisy = await client.call("noise")
    return Seen(
        f"2 MiB: {large.code}; after noise: {noisy.code}",
        large.code == "limit.output_bytes" and noisy.code == "ok",
    )


async def survives_a_crash(client: Client) -> Seen:
    """The process dies with calls in flight."""
    for tool in ("hang", "slow", "crash"):
        await client.begin(tool)
    answers = await client.settle()
    after = await client.call("search", query="owls")
    codes = Counter(answer.code for answer in answers)
    told = ", ".join(f"{code}: {count}" for code, count in codes.items())
    return Seen(
        f"{told}; then: {after.code} after {after.seconds:.2f} s",
        codes == {"agent.crashed": 3} and after.code == "ok",
    )


async def ends_a_memory_hog(client: Client) -> Seen:
    """A tool that takes memory until it is stopped."""
    answer = await client.call("hog")
    after = await client.call("search", query="owls")
    return Seen(
        f"{answer.code} after {answer.seconds:.1f} s; then: {after.code}",
        answer.code == "resource_limit_exceeded" and after.code == "ok",
    )


async def writes_no_secret(client: Client) -> Seen:
    """A password in the arguments; the audit is searched at the end."""
    answer = await client.call("search", query=SECRET)
    return Seen(answer.code, answer.code == "ok")


class Scene(NamedTuple):
    """A claim, and how it is tried."""

    title: str
    play: Callable[[Client], Awaitable[Seen]]


SCENES = (
    Scene("a denied tool is not offered, and refused", offers_only_what_is_allowed),
    Scene("ordinary calls pass", passes_ordinary_calls),
    Scene("a burst is cut to the rate; who waits as told gets in", sheds_a_burst),
    Scene("a tool that hangs is cut off at its deadline, and told", bounds_time),
    Scene("a cancel reaches the work", carries_a_cancel),
    Scene("too many at once wait their turn", queues_what_is_too_much_at_once),
    Scene("an oversized answer and noise on stdout hurt nobody else", drops_what_is_too_large),
    Scene("a crash answers everybody at once, and the session goes on", survives_a_crash),
    Scene(f"a memory hog is ended at {MEMORY_MIB} MiB, and started again", ends_a_memory_hog),
    Scene("a call with a password in it passes", writes_no_secret),
)
AUDITED = "the audit is whole and has no secret in it"


def audited(folder: Path) -> Seen:
    """The log, when all is over: whole, and without the password."""
    from callgate.audit.verify import verify  # noqa: PLC0415  # at the end only

    audit = folder / "audit"
    report = verify(audit)
    lines = sum(one.lines for one in report.writers)
    leaked = any(SECRET.encode() in file.read_bytes() for file in audit.rglob("*.jsonl"))
    return Seen(
        f"{lines} records, {'tampered' if report.tampered else 'verified'}, "
        f"the password {'is there' if leaked else 'is not there'}",
        report.ok and not leaked,
    )


async def _all(client: Client, tool: str, count: int) -> list[Answer]:
    for _ in range(count):
        await client.begin(tool, query="owls")
    return await client.settle()
