"""A rogue set of tools behind the gate, and callers that behave well and badly.

Everything happens in this process: no root, no network, no other package. What each scene claims
is checked as it goes, by what the tools saw of themselves and by what the audit says; the program
exits with 1 if a claim does not hold. On a terminal it shows the counters live; in a pipe it
prints lines. It writes only into `.demo/`, which it empties first.

python examples/in_process.py [--fast]        (--fast leaves out the pauses for the reader)
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from callgate import CallgateError, Job, Policy, RateLimited, Router, ToolCall
from callgate.audit.events import TERMINAL
from callgate.audit.verify import verify

if TYPE_CHECKING:
    from collections.abc import Coroutine

HOME = Path(".demo")
SECRET = "correcthorsebatterystaple42"  # noqa: S105  # it must not be found again

POLICY = """\
version: 1
defaults: {timeout: 5s, concurrency: 8, rate: unlimited}
callers: {alice: {}, bob: {}, flood: {}}        # callers that are named here appear by name
agents:
  rogue:
    tools:
      search: {rate: {limit: 60/minute, burst: 5, per: caller}}
      hang: {timeout: 400ms}
      report: {concurrency: 2}
      dump: {max_output_bytes: 64KiB}
      peek: {rate: {limit: 2/minute, mode: shadow}}
      "delete_*": deny
  printer:
    concurrency: 1
    queue: 30
audit: {path: audit}
"""

PAUSE_S = 1.2
"""Between two scenes on a terminal: time to read three lines."""
HANG_MS, BURST, FLOOD, POLITE, SHADOWED = 400, 5, 20, 3, 3


class Claim(NamedTuple):
    """What a scene promised and what was seen."""

    text: str
    seen: str
    held: bool


class Rogue:
    """Tools that nobody should run unguarded, and what they saw of their own end."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.printed: list[str] = []
        self.deleted = False
        self.at_work = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()

    def register(self, router: Router) -> None:
        """Put them behind the gate."""
        for tool in (self.search, self.hang, self.report, self.dump, self.peek, self.explode):
            router.add_tool("rogue", tool.__name__, tool)
        router.add_tool("rogue", "delete_everything", self.delete_everything)
        router.add_tool("printer", "print", self.print_page)

    async def search(self, query: str, password: str = "") -> str:
        """Answer at once."""
        del password
        return f"a page about {query}"

    async def hang(self) -> None:
        """Never answer."""
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended.append("hang")

    async def report(self, name: str) -> str:
        """Work until somebody says that it may end."""
        self.at_work.release()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append(name)
            raise
        return name

    async def dump(self) -> str:
        """Answer with far too much."""
        return "x" * 2_000_000

    async def peek(self) -> str:
        """Answer; its limit is only being tried out."""
        return "seen"

    async def explode(self) -> None:
        """Fail, with a secret in the error's text."""
        raise RuntimeError(f"login with {SECRET} failed")

    async def delete_everything(self) -> None:
        """Do what the policy forbids."""
        self.deleted = True

    async def print_page(self, caller: str) -> None:
        """Take a while; only one page at a time."""
        self.printed.append(caller)
        await asyncio.sleep(0.03)


class Stage:
    """What the audience sees: the router's counters live and the last lines, or lines only."""

    def __init__(self, router: Router, console: Console, pause_s: float) -> None:
        self.claims: list[Claim] = []
        self._router = router
        self._console = console
        self._pause_s = pause_s
        self._told: list[Text] = []

    async def show(self, play: Coroutine[Any, Any, None]) -> None:
        """Let the scenes play, and draw ten times a second if somebody can see it."""
        if not self._console.is_terminal:
            await play
            return
        with Live(console=self._console, auto_refresh=False, get_renderable=self._picture) as live:
            playing = asyncio.create_task(play)
            while not playing.done():
                await asyncio.wait([playing], timeout=0.1)
                live.refresh()
        await playing

    async def scene(self, title: str) -> None:
        if self.claims:
            await asyncio.sleep(self._pause_s)
        self._tell(Text(title, "bold cyan"))

    def say(self, text: str) -> None:
        self._tell(Text(f"  {text}"))

    def claim(self, text: str, seen: str, held: bool) -> None:  # noqa: FBT001  # the point of it
        """Say what a scene shows, and whether it did."""
        self.claims.append(Claim(text, seen, held))
        word, style = ("ok", "green") if held else ("NO", "bold red")
        self._tell(Text.assemble("  ", (word, style), f" {seen}"))

    def _tell(self, line: Text) -> None:
        if not self._console.is_terminal:
            print(line.plain, flush=True)
        line.no_wrap, line.overflow = True, "ellipsis"
        self._told.append(line)

    def _picture(self) -> Group:
        table = Table(box=None, header_style="bold", title="callgate in process")
        table.add_column("tool", min_width=23)
        for title in ("runs", "waits", "ok", "failed", "stopped", "refused", "shadow"):
            table.add_column(title, justify="right")
        for tool in self._router.snapshot()["tools"]:
            outcomes = Counter(tool["outcomes"])
            numbers = [tool["in_flight"], tool["queued"]]
            numbers += [outcomes.pop("ok"), outcomes.pop("tool.failed", 0), outcomes.total()]
            numbers += [sum(tool[key].values()) for key in ("refusals", "would_deny")]
            table.add_row(f"{tool['agent']}/{tool['tool']}", *map(str, numbers))
        room = max(3, self._console.height - table.row_count - 4)
        return Group(table, Text(), *self._told[-room:])


class Demo:
    """The scenes, in the order in which they play."""

    def __init__(self, router: Router, rogue: Rogue, stage: Stage) -> None:
        self._router = router
        self._rogue = rogue
        self._stage = stage

    async def play(self) -> None:
        await self.rate()
        await self.timeout()
        await self.cancel()
        await self.oversized()
        await self.fair_queue()
        await self.shadow()
        await self.denied()
        await self.failure()

    def _submit(self, tool: str, who: str = "alice", **arguments: Any) -> Job:
        agent = "printer" if tool == "print" else "rogue"
        return self._router.submit(ToolCall(agent, tool, arguments, caller=who))

    async def rate(self) -> None:
        stage = self._stage
        await stage.scene("Too often: alice may search 60 times a minute, 5 of them at once")
        jobs = [self._submit("search", query="owls", password=SECRET) for _ in range(BURST + 3)]
        ends = [await _end(job) for job in jobs]
        refused = [end for end in ends if isinstance(end, RateLimited)]
        for end in refused[:1]:
            stage.say(f"alice is told: {end}")
        bob = await _end(self._submit("search", "bob", query="larks"))
        wait_ms = max((end.retry_after_ms or 0 for end in refused), default=0)
        await asyncio.sleep(wait_ms / 1000)
        again = await _end(self._submit("search", query="owls"))
        stage.claim(
            "rates refuse what is too often, and say when to come back",
            f"{len(ends) - len(refused)} of {len(ends)} pass; bob: {_code(bob)}; "
            f"alice after the {wait_ms} ms that she was told: {_code(again)}",
            len(ends) - len(refused) == BURST and _code(bob) == _code(again) == "ok",
        )

    async def timeout(self) -> None:
        stage = self._stage
        await stage.scene(f"Too long: a tool that hangs for an hour has {HANG_MS} ms")
        begun = time.monotonic()
        end = await _end(self._submit("hang"))
        took_ms = int((time.monotonic() - begun) * 1000)
        stage.say(f"alice is told: {end}")
        ended = self._rogue.ended == ["hang"]
        stage.claim(
            "a deadline ends the work, not only the waiting",
            f"{_code(end)} after {took_ms} ms; the tool itself was cancelled: {ended}",
            _code(end) == "limit.timeout" and HANG_MS <= took_ms < 5 * HANG_MS and ended,
        )

    async def cancel(self) -> None:
        stage = self._stage
        await stage.scene("Changed her mind: alice starts two reports and cancels the first")
        first, second = (self._submit("report", name=name) for name in ("first", "second"))
        for _ in range(2):
            async with asyncio.timeout(5):
                await self._rogue.at_work.acquire()
        first.cancel()
        cancelled = await _end(first)
        self._rogue.go_on.set()
        other = await _end(second)
        ended = self._rogue.ended[1:] == ["first"]
        stage.claim(
            "a cancel reaches the work, and no other call",
            f"first: {_code(cancelled)}, its tool was cancelled: {ended}; second: {_code(other)}",
            _code(cancelled) == "tool.canceled" and ended and other == "second",
        )

    async def oversized(self) -> None:
        await self._stage.scene("Too large: a tool answers with 2 MB, 64 KiB are allowed")
        end = await _end(self._submit("dump"))
        held = _code(end) == "limit.output_bytes"
        self._stage.claim("an oversized result is withheld", f"{_code(end)}: {end}", held)

    async def fair_queue(self) -> None:
        stage = self._stage
        await stage.scene(f"Too many: {FLOOD} calls of one caller, then {POLITE} each of two more")
        callers = ["flood"] * FLOOD + ["alice", "bob"] * POLITE
        jobs = [self._submit("print", caller, caller=caller) for caller in callers]
        for job in jobs:
            await _end(job)
        printed = self._rogue.printed
        last = max(place for place, caller in enumerate(printed, 1) if caller != "flood")
        stage.say("the order: " + " ".join(caller[0] for caller in printed))
        stage.claim(
            "callers that wait are served in turn",
            f"alice and bob came behind {FLOOD} calls and were done after {last} of {len(printed)}",
            sorted(printed) == sorted(callers) and last <= 3 * POLITE + 1,
        )

    async def shadow(self) -> None:
        stage = self._stage
        await stage.scene("Just looking: a rate of 2/minute in shadow mode, 5 calls")
        jobs = [self._submit("peek") for _ in range(2 + SHADOWED)]
        ends = [await _end(job) for job in jobs]
        would = sum(sum(tool["would_deny"].values()) for tool in self._router.snapshot()["tools"])
        stage.claim(
            "shadow mode records and lets pass",
            f"{ends.count('seen')} of {len(ends)} pass, {would} would have been refused",
            ends == ["seen"] * len(ends) and would == SHADOWED,
        )

    async def denied(self) -> None:
        stage = self._stage
        await stage.scene('Forbidden: the policy says "delete_*": deny')
        end = await _end(self._submit("delete_everything"))
        stage.claim(
            "a denied tool does not run",
            f"{_code(end)}; the tool ran: {self._rogue.deleted}",
            _code(end) == "policy.denied" and not self._rogue.deleted,
        )

    async def failure(self) -> None:
        stage = self._stage
        await stage.scene("Broken: a tool fails, with a password in its error's text")
        end = await _end(self._submit("explode"))
        stage.claim(
            "a tool's own error reaches its caller unchanged",
            f"{type(end).__name__} with its text; the audit gets `tool.failed`",
            isinstance(end, RuntimeError) and SECRET in str(end),
        )


async def _end(job: Job) -> Any:
    """How a job ended: its result, or what it raised."""
    try:
        return await job
    except Exception as error:  # noqa: BLE001  # whatever the tool raises is an end
        return error


def _code(end: Any) -> str:
    if isinstance(end, CallgateError):
        return end.code
    return "tool.failed" if isinstance(end, Exception) else "ok"


def read_audit(path: Path) -> list[dict[str, Any]]:
    """All records, as anybody with a JSON parser reads them."""
    files = sorted(path.glob("*/*.jsonl"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


def judge_audit(path: Path) -> list[Claim]:
    """What the audit must show after the router has closed it."""
    records = read_audit(path)
    admitted = Counter(r["request_id"] for r in records if r["event"] == "tool.call.admitted")
    ended = Counter(r["request_id"] for r in records if r["event"] in TERMINAL)
    found = sum(SECRET.encode() in file.read_bytes() for file in path.glob("*/*"))
    report = verify(path)
    return [
        Claim(
            "every admitted call has exactly one end in the audit",
            f"{admitted.total()} admitted, {ended.total()} ended",
            admitted == ended and set(admitted.values()) == {1},
        ),
        Claim("no secret is written down", f"in {found} files of the audit", found == 0),
        Claim("the audit verifies", f"{sum(one.lines for one in report.writers)} lines", report.ok),
    ]


def summarize(claims: list[Claim], audit: Path, console: Console) -> int:
    """The table at the end, and the program's exit code."""
    held = sum(claim.held for claim in claims)
    if console.is_terminal:
        table = Table("", "claim", "seen", title="summary")
        for claim in claims:
            mark = Text("ok", "green") if claim.held else Text("NO", "bold red")
            table.add_row(mark, Text(claim.text), Text(claim.seen))
        console.print(table)
    else:
        width = max(len(claim.text) for claim in claims)
        print("\nsummary")
        for claim in claims:
            print(f"{'ok' if claim.held else 'NO'}  {claim.text:<{width}}  {claim.seen}")
    events = Counter(record["event"] for record in read_audit(audit))
    print("\nin the audit:", ", ".join(f"{count} {name}" for name, count in sorted(events.items())))
    print(f"\n{held} of {len(claims)} claims hold. See for yourself:")
    print(f"  callgate audit verify {audit}")
    print(f"  callgate explain {HOME / 'callgate.yaml'} --agent rogue --tool search")
    return 0 if held == len(claims) else 1


def prepare() -> Policy:
    """An empty `.demo/` with the policy in it."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    file = HOME / "callgate.yaml"
    file.write_text(POLICY, encoding="utf-8")
    return Policy.load(file)


async def main(console: Console, *, fast: bool) -> int:
    """Play, then judge."""
    router = Router(prepare(), state_dir=HOME / "state")
    rogue = Rogue()
    rogue.register(router)
    stage = Stage(router, console, PAUSE_S if console.is_terminal and not fast else 0)
    async with router:
        await stage.show(Demo(router, rogue, stage).play())
    audit = HOME / "audit"
    return summarize(stage.claims + judge_audit(audit), audit, console)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(Console(), fast="--fast" in sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(130)
