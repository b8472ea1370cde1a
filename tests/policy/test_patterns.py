from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.policy import Policy
from callgate.policy.patterns import Entries, compile_glob, is_glob, normal
from tests.policy.helpers import lane

globs = st.text("ab*?.[]^$\\", max_size=12)
names = st.text("ab.[]^$\\*?\n", max_size=16)


def matches(glob: str, name: str) -> bool:
    """The definition, slowly: `*` is any text, `?` is one character, the rest is itself."""
    if not glob:
        return not name
    if glob[0] == "*":
        return matches(glob[1:], name) or (name != "" and matches(glob, name[1:]))
    return name != "" and glob[0] in ("?", name[0]) and matches(glob[1:], name[1:])


@given(globs, names)
def test_a_glob_matches_what_its_definition_matches(glob: str, name: str) -> None:
    assert (compile_glob(glob).fullmatch(name) is not None) == matches(normal(glob), name)


@given(globs)
def test_a_glob_matches_every_name_made_from_it(glob: str) -> None:
    name = glob.replace("*", "ab").replace("?", "b")

    assert compile_glob(glob).fullmatch(name)


@given(globs, names)
def test_runs_of_stars_mean_one_star(glob: str, name: str) -> None:
    longer = glob.replace("*", "***")

    assert normal(longer) == normal(glob)
    assert matches(longer[:24], name[:6]) == matches(normal(longer[:24]), name[:6])


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 100_000),
        ("*" + "?" * 100 + "b", "a" * 10_000),
        ("a*" * 120 + "b", "a" * 100_000),
        ("*a?" * 80 + "b", "a" * 10_000),
    ],
)
def test_no_name_makes_matching_explode(glob: str, name: str) -> None:
    pattern = compile_glob(glob)
    before = perf_counter()

    assert pattern.fullmatch(name) is None

    # Backtracking over these stars takes longer than the universe is old.
    assert perf_counter() - before < 5


@pytest.mark.parametrize("text", ["*", "a*", "?", "a?b"])
def test_stars_and_question_marks_make_a_pattern(text: str) -> None:
    assert is_glob(text)


@pytest.mark.parametrize("text", ["a", "[a]", "a.b", "{a,b}", "^a$", ""])
def test_nothing_else_makes_a_pattern(text: str) -> None:
    assert not is_glob(text)


def entries(*keys: str) -> Entries[str]:
    return Entries({key: key for key in keys})


class TestKey:
    """Which entry speaks for a name."""

    def test_the_exact_name_wins_over_every_pattern(self) -> None:
        assert entries("*", "read_*", "read_file").key("read_file") == "read_file"

    def test_of_several_patterns_the_longest_wins_wherever_it_stands(self) -> None:
        for keys in (("r*", "read_*", "*"), ("*", "read_*", "r*")):
            assert entries(*keys).key("read_file") == "read_*"

    def test_of_equally_long_ones_the_first_in_the_file_wins(self) -> None:
        assert entries("*_file", "read_*").key("read_file") == "*_file"
        assert entries("read_*", "*_file").key("read_file") == "read_*"

    def test_more_stars_do_not_make_a_pattern_longer(self) -> None:
        assert entries("read_*", "r********").key("read_file") == "read_*"

    def test_a_name_that_nothing_matches_is_counted_under_a_star(self) -> None:
        assert entries("read_*").key("write") == "*"

    def test_a_name_that_looks_like_a_pattern_is_only_a_name(self) -> None:
        assert entries("read_file").key("read_*") == "*"
        assert entries("*", "read_?").key("read_*") == "read_?"

    @given(st.lists(globs.filter(bool), max_size=6, unique=True), names)
    def test_no_name_of_a_peer_becomes_a_key(self, keys: list[str], name: str) -> None:
        assert entries(*keys).key(name) in {*keys, "*"}


class TestMatching:
    """All entries that apply, most specific first."""

    def test_a_name_has_its_own_entry_and_every_pattern_that_matches(self) -> None:
        found = entries("*", "r*", "read_file", "write_*", "read_*").matching("read_file")

        assert found == ["read_file", "read_*", "r*", "*"]

    def test_a_pattern_has_those_that_match_whatever_it_matches(self) -> None:
        found = entries("*", "r*", "read_?", "read_*", "*_file").matching("read_*")

        assert found == ["read_*", "r*", "*"]

    def test_a_question_mark_does_not_cover_a_star(self) -> None:
        assert entries("*", "?").matching("*") == ["*"]
        assert entries("a*", "a?").matching("a*") == ["a*"]
        assert entries("a*", "?*").matching("a*") == ["a*", "?*"]

    def test_what_no_entry_matched_has_none(self) -> None:
        assert entries("read_*", "search").matching("*") == []

    @given(st.lists(globs.filter(is_glob), min_size=1, max_size=5, unique=True), st.data())
    def test_whatever_speaks_for_a_pattern_matches_its_names(
        self, keys: list[str], data: st.DataObject
    ) -> None:
        table = entries(*keys)
        key = data.draw(st.sampled_from(keys))
        filling = data.draw(st.lists(st.text("ab.", max_size=2), min_size=24, max_size=24))
        parts = iter(filling)
        name = "".join(next(parts) if char == "*" else "b" if char == "?" else char for char in key)

        for covering in table.matching(key):
            assert compile_glob(covering).fullmatch(name)


POLICY = Policy.parse("""
agents:
  web:
    rate: 60/minute
    tools:
      "read_*": {rate: 5/minute}
      "read_secret*": deny
      write: {rate: 7/minute}
""")


def test_patterns_match_names_that_nobody_listed() -> None:
    assert POLICY.tool_key("web", "read_anything") == "read_*"
    assert POLICY.tool_key("web", "read_secrets") == "read_secret*"
    assert POLICY.tool_key("web", "write") == "write"
    assert POLICY.tool_key("web", "unheard-of") == "*"
    assert POLICY.tool_key("mail", "read_anything") == "*"


def test_each_listed_tool_under_a_glob_has_its_own_bucket_and_all_others_share_one() -> None:
    listed = [lane(POLICY, tool=name).rates[-1].scope for name in ("read_a", "read_b")]
    unlisted = lane(POLICY, tool="read_*").rates[-1].scope

    assert [scope.tool for scope in listed] == ["read_a", "read_b"]
    assert unlisted.tool == "read_*"
    assert lane(POLICY, tool="read_a").rates[-1].count == 5


def test_a_star_that_denies_makes_an_allow_list() -> None:
    policy = Policy.parse(
        'agents: {web: {tools: {"*": deny, search: allow, "get_*": {timeout: 1s}}}}'
    )

    assert lane(policy, tool="anything").denied
    assert lane(policy, tool="*").denied
    assert not lane(policy, tool="search").denied
    assert not lane(policy, tool="get_*").denied
    assert not lane(policy, tool="get_page").denied


def test_a_longer_deny_wins_over_a_shorter_allow() -> None:
    policy = Policy.parse('agents: {web: {tools: {"*": allow, "delete_*": deny}}}')

    assert lane(policy, tool="delete_all").denied
    assert not lane(policy, tool="list").denied
