"""Which entry of `tools` speaks for a name: the exact one, else the longest glob.

Pure. A glob has two special characters, `*` (any text, also none) and `?` (one character);
everything else is itself, so no name of a tool can be misread as a character class.

Matching is safe on hostile names: each `*` but the last becomes an atomic group that takes
the nearest fit and never gives it back, so the regex engine cannot backtrack across stars.
The nearest fit of an inner part is always as good as a farther one, because what follows
it is a `*` again. The cost is at most len(glob) x len(name), not exponential.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

ANY_TOOL = "*"

T = TypeVar("T")


def is_glob(text: str) -> bool:
    """Return True if the text is a pattern rather than a name."""
    return "*" in text or "?" in text


def normal(glob: str) -> str:
    """Return the glob with runs of `*` made one: they mean the same, but would count as longer."""
    return re.sub(r"\*+", "*", glob)


def compile_glob(glob: str, *, one: str = ".") -> re.Pattern[str]:
    """Return a regex for `fullmatch`; `one` is what stands for `?`."""
    parts = [
        "".join(one if char == "?" else re.escape(char) for char in part)
        for part in normal(glob).split("*")
    ]
    if len(parts) == 1:
        return re.compile(parts[0], re.DOTALL)
    first, *inner, last = parts
    middle = "".join(f"(?>.*?{part})" for part in inner)
    return re.compile(f"{first}{middle}.*{last}", re.DOTALL)


class Entries(Generic[T]):
    """The entries of one agent's `tools`, by name and by glob, most specific first."""

    __slots__ = ("_exact", "_globs")

    def __init__(self, entries: dict[str, T]) -> None:
        self._exact = {name: value for name, value in entries.items() if not is_glob(name)}
        # Stable: of two globs of one length the first in the file stands first.
        globs = sorted((n for n in entries if is_glob(n)), key=lambda n: -len(normal(n)))
        self._globs = [
            (glob, compile_glob(glob), compile_glob(glob, one=r"[^*]"), entries[glob])
            for glob in globs
        ]

    def key(self, name: str) -> str:
        """Return the entry's own text for a name: exact, else the longest glob, else `*`."""
        if name in self._exact:
            return name
        for glob, pattern, _, _ in self._globs:
            if pattern.fullmatch(name):
                return glob
        return ANY_TOOL

    def matching(self, key: str) -> list[T]:
        """Return what applies to a name or to a glob of the policy, most specific first.

        For a glob those globs apply that match whatever it matches: `r*` for `read_*`. It
        is matched as text, where `*` may only be met by a `*`.
        """
        if any(glob == key for glob, _, _, _ in self._globs):
            start = next(i for i, entry in enumerate(self._globs) if entry[0] == key)
            return [
                value
                for glob, _, over_globs, value in self._globs[start:]
                if glob == key or over_globs.fullmatch(key)
            ]
        if key == ANY_TOOL:  # no entry matched, and none may claim what is left
            return []
        found = [self._exact[key]] if key in self._exact else []
        return found + [value for _, pattern, _, value in self._globs if pattern.fullmatch(key)]
