"""Work that is counted, so that a test of growth needs no clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(run: Callable[[], object]) -> int:
    """Return the number of lines that a call executes, in all functions that it calls."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    gc.disable()  # what other tests left behind is no part of it
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def assert_linear(run: Callable[[int], Callable[[], object]], size: int, *, slack: float = 1.3) -> None:
    """Check that twice the size costs about twice the lines: `run` makes the call for a size."""
    run(8)()  # what is loaded at the first call is no part of it
    once, twice = lines(run(size)), lines(run(2 * size))
    assert twice < 2 * slack * once, f"{size}: {once:,} lines, {2 * size}: {twice:,}"
