"""The leaves of a policy file: limits with units, names, and where secrets may stand.

Pure. Every limit is written as a plain value, as `unlimited`, or as a mapping with a
`mode`; the three become one model here, so that nothing behind the schema asks which it
was. Validators raise `UnitError`, which carries what was expected and never the value.

Annotations are not postponed here and in `schema`: pydantic would compile each again.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from callgate.policy import units
from callgate.policy.patterns import is_glob
from callgate.policy.units import UNLIMITED, Mark, Unit, UnitError

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

Mode = Literal["enforce", "shadow", "off"]
By = Literal["router", "gate", "launcher", "audit", "nothing"]
Joins = Literal["nearest", "lowest", "every", "capped", "caller", "access"]
"""How statements of several levels become one: the nearest; the lowest, `global`, the caller and
the manifest being ceilings; every one of them; the agent's, capped by its manifest; the caller's;
the most specific entry of a tool.
"""

MAX_CONCURRENCY = 1_000_000
MAX_QUEUE = 100_000
"""A waiting call costs about 1 KiB; this many fit any host that runs agents."""

MAX_TOOLS = 4_096
"""Entries of `tools` for one agent: as many as it may list."""
MAX_PATTERNS = 256
"""Of them with `*` or `?`. A name that nobody listed is matched against each."""

AGENT_PATTERN = r"[A-Za-z0-9_.-]{1,128}"
CALLER_PATTERN = r"(?!~)[!-)+-~]{1,128}|\*"
MAX_TOOL_CHARS = 256
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NOT_ZERO = r"(?!0+(?:\.0+)?(?![0-9.]))"


class Key(Mark, frozen=True):
    """One key's row in the table, beside its name, level and type: all that others read of it.

    Pydantic skips it, but for the sentence, which it puts into the JSON schema. Values of
    profiles are spelled as in a file.
    """

    says: str
    """The key's one sentence of documentation."""
    by: By | None = None
    """Who enforces it, perhaps nothing yet; None for what steers the policy itself."""
    guarded: Any = None
    """What holds under `profile: guarded` where nothing is written."""
    interactive: Any = None
    """The same under `profile: interactive`; None: as under `guarded`."""
    contained: Any = None
    """The launcher's default for an agent that asks for containment."""
    declared: Any = None
    """The default for an agent whose manifest leaves this out."""
    joins: Joins | None = None
    """How statements of several levels meet; None: as is usual for its level and enforcer."""
    member: str | None = None
    """Of the compiled spec; None: the key with the suffix of its unit."""
    only: str | None = None
    """The one value that needs no process to enforce."""
    after: str | None = None
    """The key that `explain` shows before this one, "" for none; None: the one above it."""
    words: tuple[Any, ...] = ()
    """Its values from the strictest to the loosest, if they have such an order."""
    unwritten: Any = None
    """Of `words`, what holds where nothing is written; None: the strictest."""
    grants: bool = False
    """Whether each item of its list allows something."""

    def __get_pydantic_json_schema__(
        self, core_schema: "CoreSchema", handler: GetJsonSchemaHandler
    ) -> "JsonSchemaValue":
        return {**handler(core_schema), "description": self.says}


class Strict(BaseModel):
    """A mapping of the file: no unknown keys, no conversions, never changed again.

    Only what is used itself builds a validator, which is most of what a model costs; that of
    `PolicyFile` has all the others in it.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise UnitError(f"a whole number from {low} to {high}")

    return parse


def _above_zero(parse: Callable[[object], int], expected: str) -> Callable[[object], int]:
    def checked(value: object) -> int:
        number = parse(value)
        if number <= 0:
            raise UnitError(f"{expected}, above zero")
        return number

    return checked


def _or_unlimited(parse: Callable[[object], Any]) -> PlainValidator:
    def checked(value: object) -> Any:
        if value == UNLIMITED:
            return None
        try:
            return parse(value)
        except UnitError as error:
            raise UnitError(f"{error.expected}, or {UNLIMITED}", error.suggestion) from None

    return PlainValidator(checked)


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _schema(*kinds: dict[str, Any], unlimited: bool = True) -> WithJsonSchema:
    every = [*kinds, {"const": UNLIMITED}] if unlimited else [*kinds]
    return WithJsonSchema(every[0] if len(every) == 1 else {"anyOf": every})


_DURATION = _text(_NOT_ZERO + units.DURATION_PATTERN)
_SIZE = (_text(_NOT_ZERO + units.SIZE_PATTERN), {"type": "integer", "minimum": 1})
_CPU = (_text(_NOT_ZERO + units.CPU_PATTERN), {"type": "number", "exclusiveMinimum": 0})

_positive_ns = _above_zero(units.duration_ns, units.DURATION_TEXT)
_positive_bytes = _above_zero(units.size_bytes, units.SIZE_TEXT)

Duration = Annotated[
    int,
    units.DURATION,
    PlainValidator(units.duration_ns),
    _schema(_text(units.DURATION_PATTERN), unlimited=False),
]
DurationRange = Annotated[
    tuple[int, int],
    units.RANGE,
    PlainValidator(units.duration_range_ns),
    _schema(_text(units.RANGE_PATTERN), unlimited=False),
]
SizeOrZero = Annotated[
    int | None,
    units.SIZE,
    _or_unlimited(units.size_bytes),
    _schema(_text(units.SIZE_PATTERN), {"type": "integer", "minimum": 0}),
]
Size = Annotated[int, units.SIZE, PlainValidator(_positive_bytes), _schema(*_SIZE, unlimited=False)]
DurationOrNone = Annotated[
    int | None, units.DURATION, _or_unlimited(_positive_ns), _schema(_DURATION)
]
SizeOrNone = Annotated[int | None, units.SIZE, _or_unlimited(_positive_bytes), _schema(*_SIZE)]
CountOrNone = Annotated[
    int | None,
    _or_unlimited(_whole(1, MAX_CONCURRENCY)),
    _schema({"type": "integer", "minimum": 1, "maximum": MAX_CONCURRENCY}),
]
CpuOrNone = Annotated[int | None, _or_unlimited(units.millicores), _schema(*_CPU)]
BandwidthOrNone = Annotated[
    int | None,
    _or_unlimited(units.bandwidth_bps),
    _schema(_text(_NOT_ZERO + units.BANDWIDTH_PATTERN)),
]
RateOrNone = Annotated[
    tuple[int, int] | None,
    _or_unlimited(units.rate),
    _schema(_text(_NOT_ZERO + units.RATE_PATTERN)),
]
QueueLength = Annotated[
    int,
    units.COUNT,
    PlainValidator(_whole(0, MAX_QUEUE)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_QUEUE}),
]
Burst = Annotated[
    int,
    units.COUNT,
    PlainValidator(_whole(1, units.MAX_COUNT)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": units.MAX_COUNT}),
]
Restarts = Annotated[
    int,
    units.COUNT,
    PlainValidator(_whole(0, 1_000_000)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 1_000_000}),
]


class Limit(Strict):
    """A limit and how it is meant: `enforce`, `shadow` (only recorded) or `off`."""

    unit: ClassVar[Unit]
    limit: Any
    mode: Annotated[Mode | None, Key("Of this limit alone.")] = None

    @model_validator(mode="before")
    @classmethod
    def _from_scalar(cls, data: Any) -> Any:
        return data if isinstance(data, dict) else {"limit": data}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: "CoreSchema", handler: GetJsonSchemaHandler
    ) -> "JsonSchemaValue":
        """The short form beside the mapping, so that editors accept both."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        short = {k: v for k, v in schema["properties"]["limit"].items() if k != "title"}
        return {"anyOf": [short, schema]}


class TimeLimit(Limit):
    """At most this long, in nanoseconds."""

    unit = units.DURATION
    limit: DurationOrNone


class CountLimit(Limit):
    """At most this many."""

    unit = units.COUNT
    limit: CountOrNone


class BytesLimit(Limit):
    """At most this many bytes."""

    unit = units.SIZE
    limit: SizeOrNone


class ZeroBytesLimit(BytesLimit):
    """At most this many bytes, perhaps none."""

    limit: SizeOrZero


class CpuLimit(Limit):
    """At most this share of processors, in millicores."""

    unit = units.PROCESSORS
    limit: CpuOrNone


class BandwidthLimit(Limit):
    """At most this many bits a second."""

    unit = units.BANDWIDTH
    limit: BandwidthOrNone


class QuotaLimit(Limit):
    """At most this many calls in each window of the wall clock."""

    unit = units.RATE
    limit: RateOrNone


class RateLimit(Limit):
    """At most this many calls a period."""

    unit = units.RATE
    limit: RateOrNone
    burst: Annotated[Burst | None, Key("How many at once; the N of `N/period`.")] = None
    on_limit: Annotated[Literal["deny", "wait"], Key("Refuse, or wait in the queue.")] = "deny"


class SplitRateLimit(RateLimit):
    """A rate that may be counted for each caller apart."""

    per: Annotated[Literal["caller"] | None, Key("Each caller has its own count.")] = None


def _agent_name(name: str) -> str:
    if re.fullmatch(AGENT_PATTERN, name) is None:
        hint = "defaults" if name == "*" else None
        raise UnitError("an agent's name of letters, digits, `_`, `.` and `-`", hint)
    return name


def _caller_name(name: str) -> str:
    if re.fullmatch(CALLER_PATTERN, name) is None:
        raise UnitError('a caller\'s exact name (no blanks, no `*`, no `~` first), or "*" alone')
    return name


def _tool_name(name: str) -> str:
    if not 0 < len(name) <= MAX_TOOL_CHARS or not name.isprintable():
        raise UnitError(f"a tool's name or pattern of 1 to {MAX_TOOL_CHARS} characters")
    return name


def few_tools(tools: dict[str, Any]) -> dict[str, Any]:
    """Refuse what would make every look-up slow."""
    if len(tools) > MAX_TOOLS or sum(map(is_glob, tools)) > MAX_PATTERNS:
        raise UnitError(f"at most {MAX_TOOLS} tools, {MAX_PATTERNS} of them patterns")
    return tools


def _token(value: object) -> str:
    name = value.removeprefix("env:") if isinstance(value, str) else ""
    if not isinstance(value, str) or name == value or not _ENV_NAME.fullmatch(name):
        raise UnitError("env:NAME, so that the secret itself stays out of the file")
    return name


def _version(value: object) -> int:
    if value.__class__ is not int or value != 1:  # true equals 1 in Python
        raise UnitError("1")
    return 1


def _state(value: object) -> str:
    if isinstance(value, str) and value.startswith(("redis://", "rediss://", "unix://")):
        raise UnitError("local: a shared state is not available in this version", "local")
    if value != "local":
        raise UnitError("local", "local")
    return "local"


def _env_name(value: object) -> str:
    if not isinstance(value, str) or _ENV_NAME.fullmatch(value) is None:
        raise UnitError("the name of an environment variable")
    return value


def _cgroup(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or ".." in value.split("/"):
        raise UnitError("the absolute path of a cgroup, such as /sys/fs/cgroup/agents")
    return value


MAY_BE_EMPTY = BeforeValidator(lambda data: {} if data is None else data)
"""For an entry that may stand without keys."""
AgentName = Annotated[str, AfterValidator(_agent_name)]
CallerName = Annotated[str, AfterValidator(_caller_name)]
ToolName = Annotated[str, AfterValidator(_tool_name)]
Token = Annotated[
    str,
    Unit("`env:NAME`", "env:{}".format),
    PlainValidator(_token),
    WithJsonSchema(_text(f"env:{_ENV_NAME.pattern}")),
]
_EnvName = Annotated[str, PlainValidator(_env_name), WithJsonSchema(_text(_ENV_NAME.pattern))]
EnvNames = Annotated[list[_EnvName], Unit("list", ", ".join)]
Version = Annotated[Literal[1], BeforeValidator(_version)]
State = Annotated[
    str, Unit("`local`", str), PlainValidator(_state), WithJsonSchema({"const": "local"})
]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
Programs = Annotated[list[Text], Unit("list", ", ".join)]
CgroupPath = Annotated[Text, AfterValidator(_cgroup)]
Command = Annotated[list[Text], Field(min_length=1), Unit("list", lambda _: "set")]
"""Words that may hold secrets: never shown."""
