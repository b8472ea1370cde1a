"""Kill a change with SIGKILL before each line that may write, one process for each line.

`python -m tests.setup.killed FOLDER` prints how many lines there were; it fails at the first kill
that leaves neither the old nor the new file, or after which the change cannot be undone.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callgate.setup import records, work
from callgate.setup.clients import OTHER, Place

if TYPE_CHECKING:
    from types import FrameType

OLD = b'{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "args": ["z"]}}}\n'
WRITERS = {
    "config_file.py": {
        "replace",
        "_keep_what_came_out",
        "_compare",
        "_exchange",
        "_sync",
        "_sweep",
    },
    "records.py": {"save", "forget"},
    "files.py": {"draft_of", "create_file", "replace_file"},
    "work.py": {"apply", "apply_undo"},
    "pathlib.py": {"write_bytes", "write_text"},
}
"""By file: the functions on whose lines a kill may fall. All others only read or compute."""


def killer(line: int) -> Any:
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        file = frame.f_code.co_filename.rpartition("/")[2]
        if frame.f_code.co_name not in WRITERS.get(file, ()):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def change(file: Path, *, undo: bool) -> None:
    place = Place(OTHER, str(file))
    if undo:
        for record in records.load_all():
            work.apply_undo(work.prepare_undo(record))
    else:
        work.apply(work.prepare_wrap(place, "/opt/bin/callgate", None))


def killed_at(line: int, file: Path, *, undo: bool) -> bool:
    """Make the change in a child that is killed before this line; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            sys.settrace(killer(line))
            change(file, undo=undo)
            sys.settrace(None)
        except BaseException:  # noqa: BLE001  # the parent sees the exit code
            os._exit(2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def check(file: Path, new: bytes, *, undo: bool) -> int:
    line = 0
    while True:
        file.write_bytes(OLD)
        if undo:
            change(file, undo=False)
        killed = killed_at(line, file, undo=undo)
        assert file.read_bytes() in {OLD, new}, line
        change(file, undo=False)  # run it again, over whatever the kill left
        assert file.read_bytes() == new, line
        change(file, undo=True)
        assert file.read_bytes() == OLD, line
        assert [each.name for each in file.parent.iterdir()] == [file.name], line
        if not killed:
            return line
        line += 1


def main(folder: Path) -> None:
    file = folder / "mcp.json"
    file.write_bytes(OLD)
    new = work.prepare_wrap(Place(OTHER, str(file)), "/opt/bin/callgate", None).after
    print(check(file, new, undo=False), check(file, new, undo=True))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
