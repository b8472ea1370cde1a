"""The page on compatibility says what the table names and what was found equal, no more."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.compat.published.page import PAGE, render
from tests.compat.published.results import KEPT, load, wanted
from tests.compat.published.table import CLIENTS, PARTNERS, SERVERS

EXACT = re.compile(r"\d+(\.\d+)+")
SERVERS_AT_LEAST = 25
PARTNERS_AT_LEAST = 3


def test_the_page_is_what_the_table_and_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(load(KEPT))


def test_a_version_that_was_not_tried_is_not_on_the_page() -> None:
    results = load(KEPT)
    gone = wanted()[0]
    del results[gone]

    with pytest.raises(LookupError, match=re.escape(gone)):
        render(results)


def test_every_version_is_exact_and_every_name_is_there_once() -> None:
    versions = {each.version for each in SERVERS} | {each.version for each in CLIENTS}

    assert [each for each in versions if not EXACT.fullmatch(each)] == []
    assert set(Counter(wanted()).values()) == {1}


def test_the_table_is_as_broad_as_promised() -> None:
    assert len(SERVERS) >= SERVERS_AT_LEAST
    assert {each.registry for each in SERVERS} == {"npm", "PyPI"}
    assert len(PARTNERS) >= PARTNERS_AT_LEAST
    assert set(PARTNERS) <= {each.name for each in SERVERS}
