from __future__ import annotations

import gc
import tracemalloc
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from callgate.policy import Policy, PolicyError, source
from callgate.policy.problems import Problem
from callgate.policy.source import MAX_DEPTH, MAX_NODES, MAX_SOURCE_BYTES, decode, read
from tests.conftest import FULL
from tests.policy.helpers import outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1024 * 1024


@pytest.fixture(params=["libyaml", "python"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyYAML comes with and without its C library."""
    if request.param == "python":
        monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML was built without libyaml")
    return str(request.param)


def tree(text: str) -> Any:
    document, found = read(text)
    assert found == []
    assert document is not None
    return document.tree()


def found(text: str) -> list[tuple[int, int, str]]:
    _, every = read(text)
    return [(problem.line, problem.column, problem.found) for problem in every]


class TestScalars:
    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("true", True),
            ("False", False),
            ("TRUE", True),
            ("0", 0),
            ("-12", -12),
            ("+5", 5),
            ("0.5", 0.5),
            ("-0.25", -0.25),
            ("'true'", "true"),
            ('"5"', "5"),
            ("text", "text"),
            ("60/minute", "60/minute"),
            ("512Mi", "512Mi"),
        ],
    )
    def test_a_word_means_what_yaml_1_2_says(self, word: str, value: object) -> None:
        read_value = tree(f"a: {word}")["a"]

        assert read_value == value
        assert type(read_value) is type(value)

    @pytest.mark.parametrize("word", ["~", "null", "Null", "NULL", ""])
    def test_nothing_is_nothing(self, word: str) -> None:
        assert tree(f"a: {word}")["a"] is None

    @pytest.mark.parametrize(
        "word",
        [
            "010",
            "0o17",
            "0x1F",
            "0b11",
            "1_000",
            "1:30",
            "190:20:30",
            "2024-01-01",
            "1e3",
            ".5",
            "5.",
            ".inf",
            "-.INF",
            ".NaN",
            "1" * 19,
            "0." + "1" * 16,
            "True story",
            "nUll",
            "tRUE",
        ],
    )
    def test_what_readers_disagree_on_stays_text(self, word: str) -> None:
        assert tree(f"a: {word}")["a"] == word

    @pytest.mark.parametrize(
        ("word", "meant"),
        [(w, "true") for w in ("y", "Y", "yes", "Yes", "YES", "on", "On", "ON")]
        + [(w, "false") for w in ("n", "N", "no", "No", "NO", "off", "Off", "OFF")],
    )
    def test_a_boolean_of_yaml_1_1_is_an_error_with_the_word_to_write(
        self, either_parser: str, word: str, meant: str
    ) -> None:
        _, (problem,) = read(f"a:\n  b: [1, {word}]")

        assert (problem.line, problem.column) == (2, 10)
        assert problem.found == f'"{word}" without quotes'
        assert problem.suggestion == meant
        assert problem.path == "a.b"

    @pytest.mark.parametrize("word", ["yes", "off", "n"])
    def test_the_same_word_in_quotes_is_text(self, word: str) -> None:
        assert tree(f"a: '{word}'") == {"a": word}

    def test_as_keys_these_words_are_names(self) -> None:
        assert tree("{on: a, y: b, no: c}") == {"on": "a", "y": "b", "no": "c"}

    def test_mode_off_is_this_files_own_word(self) -> None:
        assert tree("mode: off") == {"mode": "off"}
        assert found("mode: Off") == [(1, 7, '"Off" without quotes')]
        assert found("mode: [off]") == [(1, 8, '"off" without quotes')]


class TestKeys:
    def test_a_duplicate_key_is_an_error_that_names_the_first(self, either_parser: str) -> None:
        _, (problem,) = read("a: 1\nb: 2\na: 3\n")

        assert (problem.line, problem.column) == (3, 1)
        assert problem.found == "a duplicate key"
        assert "line 1" in problem.expected

    def test_duplicates_are_found_at_every_depth_and_all_at_once(self, either_parser: str) -> None:
        text = "a: {b: 1, c: 2, b: 3}\nd:\n  - {e: 1, 'e': 2}\na: 1\n"

        assert found(text) == [
            (1, 17, "a duplicate key"),
            (3, 12, "a duplicate key"),
            (4, 1, "a duplicate key"),
        ]

    def test_keys_that_only_differ_in_quotes_or_escapes_are_the_same(self) -> None:
        assert found('a: 1\n"\\x61": 2') == [(2, 1, "a duplicate key")]

    def test_a_merge_key_is_an_error(self, either_parser: str) -> None:
        text = "a: &a {b: 1}\nc:\n  <<: *a\n"

        assert found(text) == [(3, 3, "a merge key (<<)")]
        assert tree("'<<': 1") == {"<<": 1}

    @pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "~"])
    def test_a_key_that_is_no_text_is_an_error(self, key: str) -> None:
        assert found(f"a:\n  {key}: 1") == [(2, 3, f'the key "{key}" without quotes')]
        assert tree(f"'{key}': 1") == {key: 1}

    @pytest.mark.parametrize("key", ["[a]", "{a: b}", "? [a, b]\n"])
    def test_a_list_or_mapping_as_a_key_is_an_error(self, key: str) -> None:
        assert found(f"{key} : 1") == [
            (1, key.index("[" if "[" in key else "{") + 1, "a list or mapping as a key")
        ]


class TestForm:
    @pytest.mark.parametrize(
        "tag",
        ["!!str", "!!python/object:os.system", "!!python/object/apply:os.getcwd []", "!x", "!"],
    )
    def test_a_tag_is_an_error_and_builds_nothing(self, either_parser: str, tag: str) -> None:
        assert (1, 4, "a tag (!…)") in found(f"a: {tag} b" if "[]" not in tag else f"a: {tag}")

    def test_a_second_document_is_an_error(self, either_parser: str) -> None:
        assert found("a: 1\n---\nb: 2\n") == [(2, 1, "a second document")]
        assert tree("---\na: 1\n...\n") == {"a": 1}

    @pytest.mark.parametrize("text", ["", " \n\n", "# only a remark\n", "---\n", "null", "~"])
    def test_nothing_at_all_is_an_error(self, text: str) -> None:
        assert found(text) == [(1, 1, "nothing")]

    def test_a_tab_as_indentation_is_an_error_at_its_place(self, either_parser: str) -> None:
        ((line, _, what),) = found("agents:\n\tweb: {}\n")

        assert line == 2
        assert "syntax error" in what

    @pytest.mark.parametrize(
        "text", ["a: [1", "a: {b", "a: 'b", 'a: "b', "a: b: c", "@a", "- a\nb: c"]
    )
    def test_a_syntax_error_has_a_place(self, either_parser: str, text: str) -> None:
        ((line, column, what),) = found(text)

        assert line in (1, 2)
        assert column >= 1
        assert "syntax error" in what

    @pytest.mark.parametrize(
        "text",
        [
            'token: "hunter2',
            "token: 'hunter2",
            "token: @hunter2",
            "token: !hunter2!x y",
            "%hunter2 x",
            "token: *hunter2",
            "token: &hunter2",
            "token: hunter2: x",
            "token: [hunter2",
            'a: "\\hunter2"',
            "!<hunter2",
            "&hunter2 &hunter2 a",
            "token: `hunter2",
        ],
    )
    def test_a_syntax_error_never_repeats_the_files_words(
        self, either_parser: str, text: str
    ) -> None:
        with pytest.raises(PolicyError) as caught:
            Policy.parse(text)

        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value.as_dict())

    def test_an_alias_is_the_same_value_again(self, either_parser: str) -> None:
        assert tree("a: &x {b: [1]}\nc: *x\n") == {"a": {"b": [1]}, "c": {"b": [1]}}

    def test_an_anchor_may_be_set_anew(self) -> None:
        assert tree("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}

    @pytest.mark.parametrize("text", ["a: *x", "a: &x [*x]", "&x a: {b: *y}"])
    def test_an_alias_without_its_anchor_is_an_error(self, either_parser: str, text: str) -> None:
        ((line, column, what),) = found(text)

        assert (line, column) == (1, text.index("*") + 1)
        assert what == "an alias without an anchor before it"


class TestText:
    def test_a_byte_order_mark_is_no_part_of_the_policy(self, tmp_path: Path) -> None:
        file = tmp_path / "p.yaml"
        file.write_bytes(b"\xef\xbb\xbfversion: 2\n")

        with pytest.raises(PolicyError) as caught:
            Policy.load(file)

        (problem,) = caught.value.problems
        assert (problem.line, problem.column) == (1, 10)
        assert problem.path == "version"

    @pytest.mark.parametrize(
        ("data", "place"),
        [
            (b"\xff", (1, 1)),
            (b"a: 1\nb: \xc3", (2, 4)),
            ("a: ü\nbü: é".encode() + b"\xe9 x", (2, 6)),
            ("version: 1\n".encode("utf-16"), (1, 1)),
            (b"a: \xed\xa0\x80", (1, 4)),
        ],
    )
    def test_a_byte_that_is_not_utf_8_is_an_error_at_its_place(
        self, data: bytes, place: tuple[int, int]
    ) -> None:
        problem = decode(data)

        assert isinstance(problem, Problem)
        assert (problem.line, problem.column) == place

    @pytest.mark.parametrize("char", ["\0", "\x07", "\x1b", "\x7f", "\ud800", "\ufffe"])
    def test_a_character_that_cannot_be_printed_is_an_error_at_its_place(self, char: str) -> None:
        assert found(f"a: 1\nb: x{char}") == [(2, 5, f"the character U+{ord(char):04X}")]

    def test_wide_characters_count_as_one_column(self, either_parser: str) -> None:
        assert found("{'ü😀': yes}") == [(1, 8, '"yes" without quotes')]

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_lines_are_counted_whatever_ends_them(self, either_parser: str, end: str) -> None:
        assert found(f"a: 1{end}b: 2{end}c: yes{end}") == [(3, 4, '"yes" without quotes')]


class TestBounds:
    def test_a_file_of_ten_megabytes_is_an_error_of_which_little_is_read(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "p.yaml"
        with file.open("wb") as out:
            out.truncate(10_000_000)
        gc.collect()
        tracemalloc.start()
        try:
            with pytest.raises(PolicyError) as caught:
                Policy.load(file)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        (problem,) = caught.value.problems
        assert str(MAX_SOURCE_BYTES) in problem.expected
        assert peak < 3 * MIB

    def test_the_limit_counts_bytes_not_characters(self) -> None:
        assert found("# " + "ü" * (MAX_SOURCE_BYTES // 2 - 1))[0][2] == "nothing"
        assert "bytes" in found("# " + "ü" * (MAX_SOURCE_BYTES // 2))[0][2]

    def test_nesting_ends_at_its_limit(self, either_parser: str) -> None:
        assert tree("[" * MAX_DEPTH + "]" * MAX_DEPTH)
        ((line, column, what),) = found("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))

        assert (line, column, what) == (1, MAX_DEPTH + 1, "deeper nesting")

    def test_nesting_by_aliases_ends_at_the_same_limit(self) -> None:
        half = MAX_DEPTH // 2
        nested = "[" * half + "]" * half

        assert tree(f"- &a {nested}\n- " + "[" * (half - 1) + "*a" + "]" * (half - 1))
        assert found(f"- &a {nested}\n- " + "[" * half + "*a" + "]" * half) == [
            (2, 3 + half, "deeper nesting")
        ]

    def test_values_are_counted_after_aliases(self) -> None:
        ten = "&a [" + ",".join("1" * 10) + "]"
        aliases = MAX_NODES // 11 + 1

        ((_, _, what),) = found(f"[{ten}" + ",*a" * aliases + "]")

        assert what == "more values"


def laughs(levels: int) -> str:
    """Ten to the power of `levels`, with anchors."""
    lines = ["l0: &l0 [" + ",".join(["ha"] * 10) + "]"]
    lines += [f"l{n}: &l{n} [" + ",".join([f"*l{n - 1}"] * 10) + "]" for n in range(1, levels)]
    return "\n".join(lines)


def some(count: int, entry: Callable[[int], str], head: str) -> str:
    return head + "".join(entry(number) for number in range(count))


HOSTILE = {
    "a billion laughs": laughs(9),
    "aliases in mappings": some(40_000, lambda n: f"k{n}: *a\n", "a: &a {b: 1}\n"),
    "deep lists": "[" * (MAX_SOURCE_BYTES - 1),
    "deep mappings": "{a: " * (MAX_SOURCE_BYTES // 4 - 1),
    "deep blocks": "".join(" " * n + "a:\n" for n in range(1_400)),
    "explicit keys": "? " * (MAX_SOURCE_BYTES // 2 - 1),
    "empty keys": "?\n" * (MAX_SOURCE_BYTES // 2 - 1),
    "list marks": "- " * (MAX_SOURCE_BYTES // 2 - 1),
    "a key of a megabyte": "x" * (MAX_SOURCE_BYTES - 5) + ": 1",
    "a number of a megabyte": "version: " + "9" * (MAX_SOURCE_BYTES - 10),
    "tabs": "\t" * (MAX_SOURCE_BYTES - 1),
    "blanks": " " * (MAX_SOURCE_BYTES - 1),
    "lines": "\n" * (MAX_SOURCE_BYTES - 1),
    "remarks": "#\n" * (MAX_SOURCE_BYTES // 2 - 1),
    "marks": "!" * (MAX_SOURCE_BYTES - 1),
    "escapes": 'a: "' + "\\n" * (MAX_SOURCE_BYTES // 2 - 4) + '"',
    "duplicates": "a: 1\n" * (MAX_SOURCE_BYTES // 5 - 1),
    "booleans": "a: [" + "yes," * (MAX_SOURCE_BYTES // 4 - 4) + "]",
    "unknown keys": some(45_000, lambda n: f"k{n}: 1\n", ""),
    "bad values": some(24_000, lambda n: f"  c{n}: {{concurrency: x}}\n", "callers:\n"),
    "bad tokens": some(16_000, lambda n: f"  c{n}: {{token: s{n}, x: 1}}\n", "callers:\n"),
    "empty tools": some(45_000, lambda n: f"      t{n}:\n", "agents:\n  web:\n    tools:\n"),
    "patterns": some(45_000, lambda n: f'      "{n}*": deny\n', "agents:\n  web:\n    tools:\n"),
    "bad mounts": "agents: {a: {containment: {mounts: [" + "{}," * 90_000 + "]}}}",
}


@pytest.fixture(scope="module")
def honest_seconds() -> float:
    """What a large and valid policy takes on this machine now."""
    text = some(
        7_500,
        lambda n: f"  a{n}:\n    concurrency: 5\n    rate: 60/minute\n    tools:\n      t: deny\n",
        "version: 1\nagents:\n",
    )
    before = perf_counter()
    Policy.parse(text)
    return perf_counter() - before


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_takes_no_longer_than_a_large_honest_one(
    name: str, honest_seconds: float
) -> None:
    before = perf_counter()

    with pytest.raises(PolicyError) as caught:
        Policy.parse(HOSTILE[name])

    assert perf_counter() - before < 8 * honest_seconds
    assert len(str(caught.value)) < 100_000
    assert all(problem.line >= 1 and problem.column >= 1 for problem in caught.value.problems)


@pytest.mark.parametrize(
    "name", HOSTILE if FULL else ["a billion laughs", "deep lists", "unknown keys", "escapes"]
)
def test_a_hostile_file_takes_bounded_memory(name: str) -> None:
    text = HOSTILE[name]
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(PolicyError):
            Policy.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 200 * MIB


@given(st.text())
def test_any_text_is_a_policy_or_a_list_of_problems(text: str) -> None:
    result = outcome(text)

    assert isinstance(result, Policy) or result.problems


yaml_like = st.lists(
    st.sampled_from(
        [
            "version",
            "agents",
            "web",
            "tools",
            "rate",
            "token",
            ": ",
            ":\n  ",
            "\n",
            "- ",
            "{",
            "}",
            "[",
            "]",
            ", ",
            "&a ",
            "*a",
            "!!str ",
            "'",
            '"',
            "|\n",
            ">\n",
            "<<",
            "yes",
            "1",
            "60/minute",
            "#",
            "---\n",
            "...\n",
            "? ",
            "\t",
            "~",
            "unlimited",
            "deny",
            '"*"',
            "callers",
            "mode",
            "off",
        ]
    ),
    max_size=30,
).map("".join)


@given(yaml_like)
def test_anything_that_looks_like_yaml_is_a_policy_or_a_list_of_problems(text: str) -> None:
    result = outcome(text)

    if isinstance(result, Policy):
        assert result.explain("web", "search")
    else:
        lines = text.count("\n") + 2
        assert result.problems
        assert all(1 <= problem.line <= lines for problem in result.problems)


def test_both_parsers_see_the_same_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: yes\nb: &x [1, {c: off}]\na: *x\nd: {1: 2, <<: *x}\n"
    fast = found(text)

    monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)

    assert found(text) == fast
    assert len(fast) == 5
