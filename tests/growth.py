"""Work that is counted, so that a test of growth needs no clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls(run: Callable[[], object]) -> int:
    """Return the number of calls, of functions in Python and in C, that a call makes.

    Lines and instructions would say more, but where each is traced, Python 3.11 may crash or never end.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what other tests left behind is no part of it
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def assert_linear(run: Callable[[int], Callable[[], object]], size: int, *, slack: float = 1.3) -> None:
    """Check that twice the size costs about twice the calls: `run` makes the call for a size."""
    run(8)()  # what is loaded at the first call is no part of it
    once, twice = calls(run(size)), calls(run(2 * size))
    assert twice < 2 * slack * once, f"{size}: {once:,} calls, {2 * size}: {twice:,}"
