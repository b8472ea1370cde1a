"""One run of `init`, `wrap` or `unwrap`: show each change, ask, make it, and answer."""

from __future__ import annotations

import gc
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from callgate.cli import say
from callgate.setup import records, work
from callgate.setup.difference import difference
from callgate.setup.first_policy import FIGURES, policy_path, policy_text, write_policy
from callgate.setup.formats.nodes import Refused
from callgate.setup.program import find_program
from callgate.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from callgate.setup.clients import Place
    from callgate.setup.plan import Change
    from callgate.setup.work import Job

CHANGED: Final = frozenset({"wrap", "unwrap"})
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
UNDO: Final = "callgate init --undo takes it all back; callgate unwrap FILE, one file"


class Session:
    """What the user has asked for, and what has become of each file."""

    def __init__(self, *, yes: bool, dry_run: bool, as_json: bool, at_once: bool = False) -> None:
        self._yes, self._dry_run, self._as_json, self._at_once = yes, dry_run, as_json, at_once
        self._answers: list[dict[str, Any]] = []
        self._policy: dict[str, Any] | None = None
        self._console: Console | None = None
        if as_json and not (yes or dry_run):
            self.usage("--json asks no questions: add --yes or --dry-run")

    def usage(self, text: str) -> NoReturn:
        """Say what is wrong with the command line, and exit."""
        say.remark(f"callgate: {quoted(text)}")
        raise typer.Exit(2)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Answer at the end; what is refused as a whole becomes one line."""
        refused = None
        # The nodes of a large file are millions; looking through them for garbage again and
        # again took nine tenths of the time.
        gc.disable()
        try:
            yield
        except Refused as error:
            refused = str(error)
            say.remark(f"callgate: {refused}")
        finally:
            gc.enable()
        ok = refused is None and all(each["ok"] for each in self._answers)
        if self._as_json:
            answer = {"ok": ok, "refused": refused, "files": self._answers, "policy": self._policy}
            say.print_json(answer)
        raise typer.Exit(0 if ok else 1)

    def wrap(self, places: Sequence[Place], policy: Path | None, *, enforce: bool) -> None:
        """Put the gate before the servers of these files."""
        program = find_program()
        if not places:
            raise Refused(
                "no configuration of a known MCP client was found here; "
                "for any other file: callgate wrap FILE"
            )
        first = policy_path(work.this_home().xdg)
        _check(first if policy is None else policy, must_exist=policy is not None)
        jobs = []
        for place in places:
            yours = str(first if policy is None else policy.absolute())
            # Others have a project's file, too: no path of this host may stand there.
            shared = None if policy is None else str(policy)
            named = yours if place.project is None else shared
            jobs.append(work.prepare_wrap(place, program, named))
        accepted = self._ask(jobs)
        if not accepted:
            return
        if self._dry_run:
            self._say("")
            self._say("nothing was changed: this was a dry run")
            return
        with records.lock():
            if policy is None and any(job.place.project is None for job in accepted):
                self._write_policy(first, accepted, enforce=enforce)
            self._make(accepted, work.apply)
        self._say("")
        self._say(f"Next: {UNDO}.")

    def undo(self, jobs: Sequence[Job]) -> None:
        """Take the gate away from these files."""
        if not jobs:
            self._say("nothing of callgate's is left to undo")
            return
        accepted = self._ask(jobs)
        if self._dry_run:
            return
        with records.lock():
            self._make(accepted, work.apply_undo)
            for job in jobs:
                if job.refused is None and not job.changes:
                    work.apply_undo(job)

    def _make(self, jobs: Sequence[Job], act: Callable[[Job], None]) -> None:
        for job in jobs:
            answer = self._answer_of(job)
            try:
                act(job)
            except Refused as error:
                answer |= {"status": "refused", "reason": str(error), "ok": False}
                say.remark(f"callgate: {quoted(str(error))}")
                continue
            answer["status"] = "changed"
            after = job.place.client.after
            self._say(f"changed {quoted(job.place.path)}" + (f"; now {after}" if after else ""))

    def _ask(self, jobs: Sequence[Job]) -> list[Job]:
        """Show all jobs and return those that the user wants."""
        wanted = []
        for job in jobs:
            self._show(job)
            if job.changes and (self._yes or self._dry_run or self._at_once or self._confirm(job)):
                wanted.append(job)
        if self._at_once and wanted and not (self._yes or self._dry_run):
            question = f"Change these {len(wanted)} files?"
            wanted = wanted if _is_yes(question) else []
        for job in jobs:
            self._answers.append(self._judge(job, wanted=job in wanted))
        return wanted

    def _confirm(self, job: Job) -> bool:
        del job
        return _is_yes("Change this file?")

    def _judge(self, job: Job, *, wanted: bool) -> dict[str, Any]:
        if job.refused is not None:
            status = "refused"
        elif not job.changes:
            status = "unchanged"
        else:
            status = "would change" if wanted else "declined"
        servers = [
            {
                "path": list(each.path),
                "agent": each.agent,
                "status": str(each.status),
                "reason": each.why,
            }
            for each in (job.change.servers if job.change is not None else ())
        ]
        return {
            "client": job.place.client.name,
            "file": job.place.path,
            "project": job.place.project,
            "status": status,
            "reason": job.refused,
            "ok": status in {"unchanged", "would change"},
            "servers": servers,
        }

    def _answer_of(self, job: Job) -> dict[str, Any]:
        return next(each for each in self._answers if each["file"] == job.place.path)

    def _show(self, job: Job) -> None:
        place = job.place
        whose = "yours" if place.project is None else "of the project"
        self._say("")
        self._say(f"{place.client.title}, {whose}: {quoted(place.path)}", style="bold")
        if job.refused is not None:
            self._say(f"  left as it is: {quoted(job.refused)}", style="red")
            return
        if job.change is None or job.found is None:
            return
        if str(job.found.path) != place.path:
            self._say(f"  which is {quoted(str(job.found.path))}")
        self._show_servers(job.change)
        if job.changes:
            for line in difference(job.change.before, job.change.splices, job.change.value):
                self._say(f"  {line}", style=_COLOURS.get(line[0]))
            advice = f"first {place.client.before}" if place.client.before else ""
            if place.project is not None:
                advice = "whoever shares this file needs callgate on the PATH"
            self._say(f"  {advice}" if advice else "", style="yellow")

    def _show_servers(self, change: Change) -> None:
        for each in change.servers:
            does = f"becomes agent {each.agent}" if each.status == "wrap" else "gate taken away"
            if each.status not in CHANGED:
                does = f"left alone: {each.why}"
            self._say(f"  {quoted(each.name)}: {does}")
        if not change.servers:
            self._say("  no servers")

    def _write_policy(self, path: Path, jobs: Sequence[Job], *, enforce: bool) -> None:
        from callgate.cli.reference import json_schema  # noqa: PLC0415  # pydantic's models
        from callgate.policy.keys import KEYS  # noqa: PLC0415
        from callgate.stores.place import state_dir  # noqa: PLC0415

        yours = [job for job in jobs if job.place.project is None and job.change is not None]
        agents = {
            each.agent: None
            for job in yours
            if job.change is not None
            for each in job.change.servers
            if each.agent is not None
        }
        figures = {name: KEYS[name].key.guarded for name in FIGURES}
        text = policy_text(list(agents), str(state_dir() / "audit"), figures, enforce=enforce)
        new = write_policy(path, text, json.dumps(json_schema(), indent=2) + "\n")
        self._policy = {"path": str(path), "status": "written" if new else "kept"}
        said = "wrote a first policy" if new else "your policy is kept as it is"
        self._say("")
        self._say(f"{said}: {quoted(str(path))}")

    def _say(self, text: str, style: str | None = None) -> None:
        if self._as_json:
            return
        if self._console is None:
            from rich.console import Console  # noqa: PLC0415

            self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._console.print(say.rich_text(text, style or ""))


def _is_yes(question: str) -> bool:
    if not sys.stdin.isatty():
        say.remark("callgate: not changed: no terminal to ask on; add --yes, or --dry-run to look")
        return False
    return typer.confirm(question, default=False)


def _check(policy: Path, *, must_exist: bool) -> None:
    """Refuse to name a policy that no gate could start with."""
    from callgate.policy import Policy, PolicyError  # noqa: PLC0415

    if not must_exist and not policy.exists():
        return
    try:
        Policy.load(policy)
    except PolicyError as error:
        raise Refused(f"with this policy no server would start; mend it first\n{error}") from None
