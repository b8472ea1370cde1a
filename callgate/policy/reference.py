"""The JSON schema for editors and the reference page, both made from the models.

Pure. One model makes validation, schema and page, so none of them can fall behind.
"""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from callgate.policy import units
from callgate.policy.fields import AGENT_PATTERN, CALLER_PATTERN, MAX_TOOL_CHARS, Kind, Limit
from callgate.policy.profiles import PROFILES
from callgate.policy.schema import (
    Agent,
    Audit,
    Caller,
    Containment,
    Defaults,
    Env,
    Global,
    Mount,
    PolicyFile,
    Requests,
    Restart,
    Tool,
)

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PAGES: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The file", PolicyFile),
    ("`global`", Global),
    ("`callers.<name>`", Caller),
    ("`defaults`", Defaults),
    ("`agents.<name>`: the keys of `defaults`, and", Agent),
    ("`agents.<name>.tools.<name or pattern>`", Tool),
    ("`env`", Env),
    ("`containment`", Containment),
    ("`containment.mounts[]`", Mount),
    ("`restart`", Restart),
    ("`requests`", Requests),
    ("`audit`", Audit),
)
_KINDS = {
    "TimeLimit": "duration",
    "CountLimit": "count",
    "BytesLimit": "size",
    "CpuLimit": "processors",
    "BandwidthLimit": "bandwidth",
    "QuotaLimit": "rate",
    "RateLimit": "rate",
    "SplitRateLimit": "rate",
}
_HEAD = """# The policy file

<!-- Made by `callgate schema --format markdown`; change callgate/policy/schema.py instead. -->

YAML, UTF-8, at most 1 MiB. `callgate check FILE` lists every problem with its line and column;
`callgate explain FILE --agent A --tool T` shows what holds and which line says so. For your
editor: `callgate schema > callgate.schema.json` and, as the file's first line,
`# yaml-language-server: $schema=callgate.schema.json`.

## Values

| kind | written as |
|---|---|
"""
_RULES = """
Any limit may be `unlimited`, or a mapping `{limit: …, mode: enforce | shadow | off}`. A rate's
mapping also takes `burst` (else the N of `N/period`), `on_limit: deny | wait` and, on an agent
or a tool, `per: caller`.

## Which statement wins

For each key the most specific of tool, pattern, agent, manifest, `defaults` and profile; then
the lowest with the ceilings of `global`, the caller and the manifest. Rates and concurrency of
different scopes all apply. Of several patterns the longest wins, of equally long ones the first;
keys that it leaves out come from the next one that matches. The most specific entry of a tool
decides whether it is denied; an entry that only states limits allows.

A tool that nobody listed is counted under the pattern that matched it, together with the
patterns that cover that pattern; a pattern that merely overlaps it speaks for listed tools only
(`callgate explain --unlisted` shows what holds then).

A mode is the limit's own, else its tool's, agent's or caller's, else the policy's. Where an
enforced ceiling and a lower one in shadow meet, the enforced one stays.

## What is refused

Unknown and duplicate keys, keys without a value, merge keys (`<<`), tags, a second document,
and `yes no on off y n` as values without quotes (but `mode: off`). Aliases work within 100,000
values. A `token` is `env:NAME`, never the secret. Errors show nothing that stands under `token`,
`env`, `command` or `state`.

## Keys
"""


def json_schema() -> dict[str, Any]:
    """A JSON schema (2020-12) of the file."""
    schema = _without_null(PolicyFile.model_json_schema(by_alias=True))
    for name, pattern in (("agents", AGENT_PATTERN), ("callers", CALLER_PATTERN)):
        entries = schema["properties"][name]
        entries["propertyNames"] = {"pattern": f"^(?:{pattern})$"}
        entries["additionalProperties"] = {  # an entry may stand without keys
            "anyOf": [entries["additionalProperties"], {"type": "null"}]
        }
    tools = schema["$defs"]["Agent"]["properties"]["tools"]
    tools["propertyNames"] = {"minLength": 1, "maxLength": MAX_TOOL_CHARS}
    return {"$schema": SCHEMA_DIALECT, **schema}


def markdown() -> str:
    """The reference page."""
    kinds = {
        "duration": units.DURATION_TEXT,
        "size": units.SIZE_TEXT,
        "processors": units.CPU_TEXT,
        "bandwidth": units.BANDWIDTH_TEXT,
        "rate": units.RATE_TEXT,
        "range": units.RANGE_TEXT,
    }
    page = _HEAD + "".join(f"| {kind} | {text} |\n" for kind, text in kinds.items()) + _RULES
    for title, model in _PAGES:
        page += f"\n### {title}\n\n| key | value | meaning |\n|---|---|---|\n"
        inherited = Defaults.model_fields if model is Agent else {}
        for name, field in model.model_fields.items():
            if name not in inherited:
                key = field.alias or name
                page += f"| `{key}` | {_kind(field.annotation, field)} | {field.description} |\n"
    page += "\n## Profiles\n\n| key | " + " | ".join(f"`{name}`" for name in PROFILES) + " |\n"
    page += "|---|" + "---|" * len(PROFILES) + "\n"
    for key in _profile_keys():
        cells = [_profile_value(key, profile) for profile in PROFILES.values()]
        page += f"| `{key}` | {' | '.join(cells)} |\n"
    return page


def _profile_keys() -> list[str]:
    stated = {key for profile in PROFILES.values() for key in profile.model_fields_set}
    return [key for key in Defaults.model_fields if key in stated and key != "requests"]


def _profile_value(key: str, profile: Defaults) -> str:
    value = getattr(profile, key)
    limit = value.limit if isinstance(value, Limit) else value
    if key == "rate":
        return f"{units.rate_text(*limit)}, {value.on_limit}"
    if key in ("timeout", "max_timeout", "cancel_grace", "handshake"):
        return units.duration_text(limit)
    return units.size_text(limit) if key == "max_frame_bytes" else str(limit)


def _kind(annotation: Any, field: Any) -> str:
    """A type as the author of a file thinks of it."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        inner = [each for each in get_args(annotation) if each is not type(None)]
        return _kind(inner[0], field)
    if origin is Literal:
        return " \\| ".join(f"`{word}`" for word in get_args(annotation))
    if origin in (list, dict):
        return "list" if origin is list else "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _KINDS.get(annotation.__name__, "mapping")
    return "`true` \\| `false`" if annotation is bool else _marked(annotation, field)


def _marked(annotation: Any, field: Any) -> str:
    """Units are validators on plain integers; their `Kind` says which."""
    marks = [*field.metadata, *get_args(annotation)]
    return next((mark.name for mark in marks if isinstance(mark, Kind)), "text")


def _without_null(node: Any) -> Any:
    """Drop the `null`s of optional keys: in a file they are left out, not empty."""
    if isinstance(node, list):
        return [_without_null(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {k: v for k, v in node.items() if k not in ("default", "title") or isinstance(v, dict)}
    options = node.get("anyOf")
    if isinstance(options, list):
        kept = [each for each in options if each != {"type": "null"}]
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**kept[0], **rest} if len(kept) == 1 else {**rest, "anyOf": kept}
    return {key: _without_null(value) for key, value in node.items()}
