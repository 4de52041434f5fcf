"""Calls of a world that a test forgets to await: each ends the run, as it did nothing."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.logs import ReadRecord

_CALL: Final = r"coroutine '((?:SimulatedWorld|WorldGroup|Program)\.(\w+))' was never awaited"


@contextlib.contextmanager
def awaits_judged(fail: Callable[[BaseException], object]) -> Iterator[None]:
    """Call `fail` with an error for each call of a world's method that is never awaited.

    Python only warns of it, and a test that compares nothing then passes.
    """
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        found = re.search(_CALL, str(message))
        if found is None:
            before(message, category, *place, **options)
        else:
            name, verb = found.groups()
            filename, lineno = place[:2]
            fail(
                FencepostError(
                    f"{filename}:{lineno}: {name}() is not awaited, so it did nothing. "
                    f"Write `await ....{verb}(...)`"
                )
            )

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_CALL, category=RuntimeWarning)
        warnings.showwarning = show
        yield


class FoundRecords(list[ReadRecord]):
    """The records of a topic, as a list. Awaiting it returns the records of that moment."""

    def __init__(
        self, found: list[ReadRecord], read: Callable[[], Coroutine[Any, Any, list[ReadRecord]]]
    ) -> None:
        super().__init__(found)
        self._read = read

    def __await__(self) -> Generator[Any, Any, list[ReadRecord]]:
        return self._read().__await__()
