"""Make the JSON schema for editors and the reference page from the models of the policy file.

Pure. One table makes validation, schema and page, so none of them can fall behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from callgate.policy import units
from callgate.policy.fields import AGENT_PATTERN, CALLER_PATTERN, MAX_TOOL_CHARS, Limit
from callgate.policy.keys import KEYS, PROFILES, key_of, model_in, unit_of
from callgate.policy.resolve import Layer
from callgate.policy.schema import AgentPolicy, Defaults, PolicyFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = "urn:callgate:policy:1"
"""The number is the file's `version`."""

_NAMES = {"agents": ".<name>", "callers": ".<name>", "tools": ".<name or pattern>", "mounts": "[]"}
"""What stands below these keys in a file."""
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

For each key the most specific of tool, pattern, agent, `defaults`, manifest and profile; then
the lowest with the ceilings of `global`, the caller and the manifest: a manifest replaces the
profile's values, and never raises what stands in the file. Rates and concurrency of
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
and `yes no on off y n` as values without quotes (but `mode: off` and `audit: off`). Aliases work
within 100,000 values. A `token` is `env:NAME`, never the secret. Errors show nothing that stands
under `token`, `env`, `command` or `state`.

## Keys
"""


def json_schema() -> dict[str, Any]:
    """Return a JSON schema (2020-12) of the file."""
    schema = _without_null(PolicyFile.model_json_schema(by_alias=True))
    for name, pattern in (("agents", AGENT_PATTERN), ("callers", CALLER_PATTERN)):
        entries = schema["properties"][name]
        entries["propertyNames"] = {"pattern": f"^(?:{pattern})$"}
        entries["additionalProperties"] = {  # an entry may stand without keys
            "anyOf": [entries["additionalProperties"], {"type": "null"}]
        }
    audit = schema["properties"]["audit"]
    says = audit.pop("description")
    schema["properties"]["audit"] = {"anyOf": [{"const": "off"}, audit], "description": says}
    tools = schema["$defs"]["AgentPolicy"]["properties"]["tools"]
    tools["propertyNames"] = {"minLength": 1, "maxLength": MAX_TOOL_CHARS}
    return {"$schema": SCHEMA_DIALECT, "$id": SCHEMA_ID, **schema}


def markdown() -> str:
    """Return the reference page."""
    spelled = "".join(f"| {unit.kind} | {unit.expected} |\n" for unit in units.SPELLED)
    page = _HEAD + spelled + _RULES
    for path, model in _mappings(PolicyFile):
        inherited = Defaults.model_fields if model is AgentPolicy else {}
        title = f"`{path}`" if path else "The file"
        title += ": the keys of `defaults`, and" if inherited else ""
        page += f"\n### {title}\n\n| key | value | enforced by | meaning |\n|---|---|---|---|\n"
        for name, field in model.model_fields.items():
            if name not in inherited:
                key = key_of(field)
                cells = (f"`{field.alias or name}`", _kind(field), key.by or "", key.says)
                page += f"| {' | '.join(cells)} |\n".replace("|  |", "| |")
    page += "\n## Profiles\n\n| key | " + " | ".join(f"`{name}`" for name in PROFILES) + " |\n"
    page += "|---|" + "---|" * len(PROFILES) + "\n"
    for name, entry in KEYS.items():
        if entry.key.guarded is not None:
            values = [_profile_value(name, profile) for profile in PROFILES.values()]
            page += f"| `{name}` | {' | '.join(values)} |\n"
    return page


def _mappings(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a mapping and those below it, each once: an agent's are those of `defaults`."""
    yield path, model
    above = f"{path}." if path and model is not Defaults else ""
    for name, field in model.model_fields.items():
        inner, key = model_in(field.annotation), field.alias or name
        inherited = model is AgentPolicy and name in Defaults.model_fields
        if inner is not None and not issubclass(inner, Limit) and not inherited:
            yield from _mappings(inner, above + key + _NAMES.get(key, ""))


def _profile_value(name: str, profile: Defaults) -> str:
    entry = KEYS[name]
    value = Layer("agent", profile).get(entry)
    limit = value.limit if isinstance(value, Limit) else value
    if limit is None:
        return units.UNLIMITED
    text = str(limit) if entry.unit is None else entry.unit.text(limit)
    return f"{text}, {value.on_limit}" if name == "rate" else text


def _kind(field: FieldInfo) -> str:
    """Return a type as the author of a file thinks of it."""
    unit, kinds = unit_of(field), [field.annotation, *get_args(field.annotation)]
    if unit is not None:
        return unit.kind
    words = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    if words or bool in kinds:
        return " \\| ".join(f"`{word}`" for word in words or ("true", "false"))
    return "text" if model_in(field.annotation) is None else "mapping"


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
