"""`Policy`: a policy file, read, checked and ready to answer. IO only in `parse` and `load`.

Immutable; a reload makes another one. It keeps no name that a peer sent: `tool_key` maps
any name to a key of the policy, and lanes are kept by those who ask for them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from callgate.errors import ConfigError
from callgate.model import ANY, AuditSpec, GateSpec, LaneSpec, LaunchSpec
from callgate.policy.checks import unknown_launchers, warnings_of
from callgate.policy.compile_launch import StatedMount, launch_spec, stated_mounts
from callgate.policy.compile_limits import audit_spec, gate_spec, lane_spec
from callgate.policy.document import Document
from callgate.policy.explain import Explainer, Row
from callgate.policy.loosened import Loosened, audit_loosened, find_loosened
from callgate.policy.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest
from callgate.policy.problems import PolicyError, Problem
from callgate.policy.purpose import ROUTER, ProfileName, Purpose
from callgate.policy.resolve import Resolver
from callgate.policy.validate import validate
from callgate.user_files import read_user_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from callgate.policy.schema import PolicyFile

_REVISION_CHARS = 12


class _ManifestFile(msgspec.Struct, frozen=True):
    """A manifest as it was read, and from where."""

    path: Path
    manifest: Manifest
    digest: bytes


class Policy:
    """What may be called, by whom, how often, how long and how much at once."""

    __slots__ = (
        "_base",
        "_document",
        "_file",
        "_manifests",
        "_name",
        "_resolver",
        "agents",
        "audit",
        "callers",
        "files",
        "kept",
        "manifest_files",
        "purpose",
        "revision",
        "source",
        "warnings",
    )

    def __init__(
        self,
        file: PolicyFile,
        document: Document,
        manifests: Mapping[str, _ManifestFile],
        *,
        revision: str,
        name: str,
        base: Path | None,
        purpose: Purpose,
    ) -> None:
        self._file = file
        self._document = document
        self.manifest_files = manifests
        """By agent."""
        self._manifests = {agent: each.manifest for agent, each in manifests.items()}
        self._name = Path(name).name
        self._base = Path.cwd() if base is None else base
        self._resolver = Resolver(file, self._manifests, purpose)
        self.purpose = purpose
        self.revision = revision
        """12 hex digits over the text and its manifests."""
        self.source: Path | None = None
        self.files: tuple[Path, ...] = ()
        """Everything that a change of may change the policy."""
        self.callers = frozenset(file.callers) - {ANY}
        self.agents = frozenset(file.agents)
        audit = file.audit
        self.audit: AuditSpec | None = None if "audit" in file.model_fields_set else purpose.audit
        if audit is not None:
            self.audit = audit_spec(audit, _resolved(audit.path, base))
        self.warnings: tuple[Problem, ...] = ()
        self.kept: tuple[Problem, ...] = ()
        """Manifests that can no longer be used: what they said before holds. Only of a reload."""

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        source: str = "<policy>",
        base: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        former: Policy | None = None,
        purpose: Purpose | None = None,
    ) -> Policy:
        """Read a policy's text; raises `PolicyError` with every problem.

        `base` is the directory that its paths are relative to; without it, the current one.
        `former` is as in `load`. `purpose` says what holds where the text says nothing; without
        it, that of the former policy.
        """
        from callgate.policy.source import read  # noqa: PLC0415  # YAML: 15 ms

        document, problems = read(text)
        if document is None:
            raise PolicyError(problems, source=source)
        return cls._made(document, problems, text.encode(), source, base, environ, former, purpose)

    @classmethod
    def _made(
        cls,
        document: Document,
        problems: list[Problem],
        data: bytes,
        source: str,
        base: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        former: Policy | None = None,
        purpose: Purpose | None = None,
    ) -> Policy:
        """Make a policy of what was read, with the problems that it has so far."""
        file, more = validate(document)
        problems += _elsewhere(problems, more)
        if file is None or problems:
            raise PolicyError(problems, source=source)
        folder = None if base is None else Path(base)
        digest = hashlib.sha256(data)
        manifests: dict[str, _ManifestFile] = {}
        files: list[Path] = []
        kept: list[Problem] = []
        for agent, path in _manifest_paths(file, folder):
            files.append(path)
            found = _read_manifest(document, ("agents", agent, "manifest"), path)
            if isinstance(found, list):
                old = None if former is None else former.manifest_files.get(agent)
                if old is None or old.path != path:
                    problems += found
                    continue
                kept += found
                found = old
            digest.update(b"\0" + found.digest)
            manifests[agent] = found
        if problems:
            raise PolicyError(problems, source=source)
        revision = digest.hexdigest()[:_REVISION_CHARS]
        policy = cls(
            file,
            document,
            manifests,
            revision=revision,
            name=source,
            base=folder,
            purpose=purpose or (ROUTER if former is None else former.purpose),
        )
        policy.files = tuple(files)
        policy.kept = tuple(kept)
        known = os.environ if environ is None else environ
        policy.warnings = tuple(warnings_of(file, document, policy._resolver, known))
        return policy

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        environ: Mapping[str, str] | None = None,
        former: Policy | None = None,
        purpose: Purpose | None = None,
    ) -> Policy:
        """Read a policy file; its paths are relative to it. See `parse` for `purpose`.

        `former` is what the file said before, when it is read again. Then a manifest that cannot
        be used any more leaves in force what it said: an agent's author must not be able to
        keep an operator's change from being read. And the file is no pipe then.
        """
        from callgate.policy.source import MAX_SOURCE_BYTES, decode  # noqa: PLC0415  # as above

        place = Path(path)
        try:
            data = read_user_file(place, MAX_SOURCE_BYTES, pipe=former is None)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            found = getattr(error, "strerror", None) or "an unreadable file"
            problem = Problem("", 1, 1, found[0].lower() + found[1:], "a policy file")
            raise PolicyError([problem], source=str(place)) from None
        text = decode(data)
        if isinstance(text, Problem):
            raise PolicyError([text], source=str(place))
        policy = cls.parse(
            text,
            source=str(place),
            base=place.parent,
            environ=environ,
            former=former,
            purpose=purpose,
        )
        policy.source = place
        policy.files = (place, *policy.files)
        return policy

    @classmethod
    def profile(cls, name: ProfileName, *, purpose: Purpose = ROUTER) -> Policy:
        """Return a policy without a file: a profile's values, and the purpose's audit."""
        tree = {"version": 1, "profile": name}
        data = msgspec.json.encode(tree)
        return cls._made(Document.of(tree), [], data, f"<profile {name}>", purpose=purpose)

    @classmethod
    def default(cls) -> Policy:
        """Return what a policy file that says nothing means."""
        return cls.profile("guarded")

    @property
    def profile_name(self) -> str:
        """Return the profile that holds where the file says nothing."""
        return self._resolver.profile

    def agent_key(self, agent: str) -> str:
        """Return the name if the policy has it, else `*`."""
        return agent if agent in self.agents else ANY

    def tool_key(self, agent: str, tool: str) -> str:
        """Return the name if the policy has it, else the longest pattern that fits, else `*`."""
        return self._resolver.tool_key(agent, tool)

    def tool_entries(self, agent_key: str) -> tuple[str, ...]:
        """Return the names and patterns of tools that the policy has for an agent."""
        return self._resolver.tool_entries(agent_key)

    def lane(
        self, caller_key: str, agent_key: str, tool_key: str, *, agent: str | None, tool: str | None
    ) -> LaneSpec:
        """Return all that holds for a lane; `agent` and `tool` are names to show, or None.

        `agent_key` and `tool_key` may be names that the policy does not have but a program
        declared: they then have counters of their own.
        """
        resolution = self._resolver.resolve(caller_key, agent_key, tool_key)
        keys = (caller_key, agent_key, tool_key)
        return lane_spec(resolution, keys, agent=agent, tool=tool, policy=self.revision)

    def gate(self, agent: str) -> GateSpec:
        """Return all that the policy says of the connection to an agent."""
        return gate_spec(self._resolver.resolve(ANY, agent, None), agent)

    def stated_mounts(self) -> list[StatedMount]:
        """Return the mounts that agents have, each written one once."""
        agents = (*self._file.agents, ANY)
        found = [self._resolver.resolve(ANY, agent, None) for agent in agents]
        return stated_mounts(found, self._document, self._base)

    def unknown_launchers(self, known: Collection[str]) -> list[Problem]:
        """Return where it names a launcher that is not among the `known` ones."""
        return list(unknown_launchers(self._file, self._document, known))

    def launch_spec(self, agent: str, command: Sequence[str] | None = None) -> LaunchSpec:
        """Return all that the policy says of an agent's process; `command` replaces its own.

        Raises `ConfigError` if neither says how to start it.
        """
        resolution = self._resolver.resolve(ANY, agent, None)
        stated = resolution.value("command")
        words = command or (None if stated is None else stated.value)
        if not words:
            raise ConfigError(agent=agent)
        tokens = [caller.token for caller in self._file.callers.values() if caller.token]
        return launch_spec(
            resolution,
            agent,
            words,
            base=self._base,
            manifest=self._manifests.get(agent),
            tokens=tokens,
        )

    def loosened(self, former: Policy, agent: str, listed: Collection[str] = ()) -> list[Loosened]:
        """Return what this policy allows an agent, or no longer records, that `former` did not.

        `listed` are the tools that the agent says it has.
        """
        files = (former._file, self._file)
        tools = {
            tool for file in files if agent in file.agents for tool in file.agents[agent].tools
        }
        found = audit_loosened(former._file.audit, self._file.audit)
        if self._passes_all(agent) and not former._passes_all(agent):
            found.append(Loosened("env", f"agent:{agent}", "named variables", "all variables"))
        return found + find_loosened(
            former._resolver,
            self._resolver,
            agent,
            tools={*tools, *listed},
            callers=former.callers | self.callers,
        )

    def _passes_all(self, agent: str) -> bool:
        return self.launch_spec(agent, ["-"]).env.pass_all

    def explain(self, agent: str, tool: str | None = None, caller: str | None = None) -> list[Row]:
        """Return each effective limit with the line that it came from.

        `tool` is one that the agent lists. One that it does not list is under a pattern: then
        give its `tool_key`, as a router does.
        """
        resolution = self._resolver.resolve(caller or ANY, agent, tool)
        gated = self.purpose.name != "router"
        explainer = Explainer(resolution, self._document, self._name, caller or ANY, gated=gated)
        rows = explainer.rows(tool=tool is not None)
        return rows + explainer.absent(self._manifests.get(agent))


def _resolved(path: str, base: Path | None) -> str:
    return str(Path(path) if base is None else base / path)


def _elsewhere(problems: list[Problem], more: list[Problem]) -> list[Problem]:
    """Return those of `more` in new places: of two in one place the first is the cause."""
    taken = {(problem.line, problem.column) for problem in problems}
    return [problem for problem in more if (problem.line, problem.column) not in taken]


def _manifest_paths(file: PolicyFile, base: Path | None) -> Iterator[tuple[str, Path]]:
    for name, agent in file.agents.items():
        if agent.manifest is not None:
            yield name, Path(_resolved(agent.manifest, base))


def _read_manifest(
    document: Document, at: tuple[str, ...], path: Path
) -> _ManifestFile | list[Problem]:
    """Return the manifest, or its problems, placed where the policy names it."""
    line, column = document.position(at)
    where = ".".join(at)
    try:
        # An agent's author may fill that path: no device or pipe may be read for ever.
        data = read_user_file(path, MAX_MANIFEST_BYTES)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        found = f"{path.name}, which cannot be read"
        return [Problem(where, line, column, found, "a manifest file")]
    manifest, errors = read_manifest(data, path.name)
    if manifest is not None:
        return _ManifestFile(path, manifest, hashlib.sha256(data).digest())
    return [
        Problem(
            where,
            line,
            column,
            f"{error.found} in {path.name}" + (f" ({error.key})" if error.key else ""),
            error.expected,
        )
        for error in errors
    ]
