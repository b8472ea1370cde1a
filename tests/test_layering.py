"""Claims about the code itself: what is pure, what nobody uses, how long things get.

Who may import whom is import-linter's part; its contracts are in pyproject.toml.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1] / "callgate"

PURE = frozenset(
    {
        "errors",
        "model",
        "text",
        "audit/chain",
        "audit/events",
        "audit/merge",
        "audit/names",
        "contract/malformed",
        "contract/results",
        "gate/restart",
        "launcher/host/causes",
        "launcher/host/syscalls",
        "launcher/limit_message",
        "launcher/local/limit_check",
        "launcher/plan/__init__",
        "launcher/plan/bwrap",
        "launcher/plan/capabilities",
        "launcher/plan/cgroup_plan",
        "launcher/plan/environment",
        "launcher/plan/effects",
        "launcher/plan/launch_plan",
        "launcher/protocol",
        "limits/admission",
        "limits/counters",
        "limits/deadlines",
        "limits/queue",
        "limits/quota",
        "limits/rate",
        "limits/slots",
        "gate/run_events",
        "past/rows",
        "past/runs",
        "past/tally",
        "peers/mcp_session",
        "peers/runtime_facade",
        "policy/compile_launch",
        "policy/compile_limits",
        "policy/contained",
        "policy/document",
        "policy/explain",
        "policy/fields",
        "policy/keys",
        "policy/loosened",
        "policy/manifest",
        "policy/patterns",
        "policy/problems",
        "policy/purpose",
        "policy/resolve",
        "policy/schema",
        "policy/source",
        "policy/units",
        "policy/validate",
        "protocol/depth",
        "protocol/framing",
        "protocol/jsonrpc",
        "protocol/mcp",
        "protocol/mcp_encode",
        "protocol/members",
        "protocol/problem",
        "protocol/reserved",
        "protocol/results",
        "protocol/runtime",
        "protocol/runtime_table",
        "protocol/seek",
        "router/doubles",
        "router/usage",
        "setup/clients",
        "setup/difference",
        "setup/formats/jsonc",
        "setup/formats/nodes",
        "setup/formats/toml",
        "setup/formats/yaml",
        "setup/plan",
        "setup/servers",
        "telemetry/carrier",
        "telemetry/names",
        "telemetry/stats",
    }
)
"""No clock, no IO, no event loop: the caller passes time, entropy and bytes."""

IMPURE_IMPORTS = frozenset({"asyncio", "os", "socket", "subprocess", "threading", "time"})

FORBIDDEN_NAMES = {
    "wait_for": "on Python 3.11 it swallows a cancel of the same tick; use asyncio.timeout",
    "preexec_fn": "it runs between fork and exec, where another thread's lock may be held",
    "communicate": "it buffers without a bound",
    "BaseHTTPMiddleware": "it hides disconnects, which are cancels; write a pure ASGI class",
}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
LONGER: dict[str, str] = {}
"""`path` or `path::function` → why it reads better long."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Absolute names of what is imported when the code runs, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names_used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.name for alias in aliases)


def uses_a_shell(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "shell"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
        for node in ast.walk(tree)
    )


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_every_module_that_is_listed_as_pure_exists() -> None:
    assert {name_of(path) for path in modules()} >= PURE


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_module_imports_no_clock_and_no_io(name: str) -> None:
    tops = {imported.partition(".")[0] for imported in imports_of(parse(ROOT / f"{name}.py"))}

    assert tops.isdisjoint(IMPURE_IMPORTS)


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_module_imports_no_impure_one_of_ours(name: str) -> None:
    ours = {
        imported.removeprefix("callgate.").replace(".", "/")
        for imported in imports_of(parse(ROOT / f"{name}.py"))
        if imported.startswith("callgate.")
    }
    ours = {module for module in ours if (ROOT / f"{module}.py").exists()}

    assert ours <= PURE


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_nobody_uses_what_has_hurt_others(path: Path) -> None:
    tree = parse(path)

    found = {name: why for name, why in FORBIDDEN_NAMES.items() if name in set(names_used(tree))}
    assert found == {}
    assert not uses_a_shell(tree)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_the_core_never_imports_the_opentelemetry_sdk(path: Path) -> None:
    assert not any(name.startswith("opentelemetry.sdk") for name in imports_of(parse(path)))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_nothing_outgrows_its_reader(path: Path) -> None:
    tree = parse(path)
    lengths = {
        name_of(path): (len(path.read_text(encoding="utf-8").splitlines()), MAX_MODULE_LINES)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            lengths[f"{name_of(path)}::{node.name}"] = (length, MAX_FUNCTION_LINES)

    too_long = {what for what, (length, limit) in lengths.items() if length > limit}
    assert too_long <= LONGER.keys()


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.wait_for(x, 1)",
        "from asyncio import wait_for",
        "Popen(a, preexec_fn=f)",
        "p.communicate()",
        "class A(BaseHTTPMiddleware): ...",
    ],
)
def test_the_search_finds_each_forbidden_name(code: str) -> None:
    tree = ast.parse(f"async def f():\n    {code}")

    assert set(names_used(tree)) & FORBIDDEN_NAMES.keys()


@pytest.mark.parametrize("argument", ["shell=True", "shell=flag"])
def test_the_search_finds_a_shell(argument: str) -> None:
    assert uses_a_shell(ast.parse(f"run(a, {argument})"))
    assert not uses_a_shell(ast.parse("run(a, shell=False)"))
