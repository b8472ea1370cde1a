"""Frames that readers might take differently, made from a grammar and a seed."""

from __future__ import annotations

import random
from typing import Final

KEYS: Final = ("jsonrpc", "id", "method", "params")
TWINS: Final = {
    "name": [
        "name",
        "Name",
        "NAME",
        "name\\u0000",
        "\\u006eame",
        "n\\u0061me",
        "\uff4eame",
        "name ",
        "na\u200bme",
        "name\\u0000x",
        "nAme",
        "\\u000aname",
        "name\ufeff",
    ],
    "method": ["method", "Method", "METHOD", "meth\\u006fd", "method\\u0000", "\uff4dethod"],
    "params": ["params", "Params", "par\\u0061ms", "param\u017f", "params\\u0000"],
    "arguments": ["arguments", "Arguments", "argument\u017f", "\\u0061rguments"],
    "id": ["id", "ID", "Id", "\\u0069d", "id\\u0000"],
    "jsonrpc": ["jsonrpc", "JSONRPC", "jsonrpc\\u0000"],
    "_meta": ["_meta", "_META", "_m\\u0065ta"],
}
GOOD: Final = {
    "jsonrpc": '"2.0"',
    "id": "1",
    "method": '"tools/call"',
    "name": '"allowed"',
    "arguments": '{"path":"/a"}',
    "_meta": '{"progressToken":1}',
}
ODD: Final = {
    "jsonrpc": ['"2.0"', '"1.0"', "2.0", '"2\\u002e0"', "null"],
    "id": ["1", '"1"', "1.0", "null", "true", "9007199254740993", "-0", "1e0", '"\\u0031"', "01"],
    "method": [
        '"tools/call"',
        '"tools\\/call"',
        '"tools/list"',
        '"tools/call\\u0000"',
        "null",
        '"\\u0074ools/call"',
        '"TOOLS/CALL"',
        '"notifications/cancelled"',
        "[]",
    ],
    "name": [
        '"allowed"',
        '"denied"',
        '"\\u0061llowed"',
        '"allowed\\u0000"',
        '"Allowed"',
        "null",
        '["allowed","denied"]',
        '{"name":"denied"}',
        '"allowed\\ud800"',
        '"al\u017fowed"',
        "1",
    ],
    "arguments": [
        '{"path":"/a"}',
        '{"path":"/a","path":"/b"}',
        '{"x":1e999}',
        '{"x":NaN}',
        "null",
        '{"name":"denied"}',
        "[]",
        '{"\\u0000":1}',
        '{"x":-0.0,"y":1E2}',
        '{"x":"\\ud83d\\ude00"}',
        '{"x":12345678901234567890123}',
        '{"x":"\u2028"}',
        '{"x":\r1}',
        '{"x":"\\ud800"}',
        "{}",
    ],
    "_meta": [
        '{"progressToken":1}',
        '{"progressToken":1,"progressToken":2}',
        "null",
        "[]",
        '{"callgate/timeout_ms":5}',
        '{"name":"denied"}',
        '{"x":{"y":[1]}}',
    ],
}
INNER: Final = (
    '{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"denied","arguments":{}}}'
)
NOISE: Final = (
    b"\x00",
    b"\r",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\",
    b'"',
    b",",
    b"}",
    b"{",
)


class Corpus:
    """An endless source of frames; the same seed gives the same frames."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # frames, not keys

    def frame(self) -> bytes:
        """One frame, mostly close to a good call."""
        text = self._envelope()
        choice = self._random.random()
        if choice < 0.05:
            text = text.replace(":", ":" + self._random.choice("\r \t"), 1)
        elif choice < 0.10:
            broken = self._random.choice(["\r", "\r\r"])
            text = text.replace('{"path":"/a"}', f'{{"path":{broken}{INNER}{broken}}}')
        elif choice < 0.13:
            text = f"[{text},{INNER}]"
        elif choice < 0.16:
            text = "\ufeff" + text
        data = text.encode("utf-8", "surrogatepass")
        return self._damaged(data) if self._random.random() < 0.15 else data

    def _envelope(self) -> str:
        members = [(key, self._value(key)) for key in KEYS if self._random.random() > 0.02]
        if self._random.random() < 0.15:
            self._random.shuffle(members)
        return self._object(members, "method", ("method", "id", "params", "jsonrpc"))

    def _value(self, key: str) -> str:
        if key == "params":
            names = [name for name in ("name", "arguments") if self._random.random() > 0.03]
            if self._random.random() < 0.3:
                names.append("_meta")
            return self._object([(name, self._value(name)) for name in names], "name", tuple(names))
        return self._random.choice(ODD[key]) if self._random.random() < 0.12 else GOOD[key]

    def _object(self, members: list[tuple[str, str]], decoy: str, keys: tuple[str, ...]) -> str:
        """Sometimes with a second member that some readers take for one of `keys`."""
        if keys and self._random.random() < 0.25:
            key = self._random.choice(keys)
            twin = self._random.choice(TWINS[key])
            value = '"denied"' if key == "name" else self._value(key)
            members.insert(self._random.randint(0, len(members)), (twin, value))
        if self._random.random() < 0.1:
            members.append((f"x-{decoy}", INNER))
        comma, colon = self._random.choice([(",", ":"), (",", ":"), (", ", ": "), (" ,", " : ")])
        return "{" + comma.join(f'"{key}"{colon}{value}' for key, value in members) + "}"

    def _damaged(self, data: bytes) -> bytes:
        for _ in range(self._random.randint(1, 3)):
            place = self._random.randint(0, len(data))
            kind = self._random.random()
            if kind < 0.4:
                data = data[:place] + self._random.choice(NOISE) + data[place:]
            elif kind < 0.7:
                data = data[:place] + data[place + 1 :]
            else:
                data = data[:place] + bytes([self._random.randrange(256)]) + data[place + 1 :]
        return data.replace(b"\n", b" ")
