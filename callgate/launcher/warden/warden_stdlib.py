"""What `contextlib` would give, without the 4 ms that importing it costs at every launch.

What a warden imports is already loaded by the interpreter, or a small C module: `typing` and
`contextlib` alone would double the time of a launch. A test keeps it so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class _IgnoreOSError:
    """Ignores an `OSError`: what the body wanted gone is gone already."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return kind is not None and issubclass(kind, OSError)


ignore_os_error = _IgnoreOSError()
