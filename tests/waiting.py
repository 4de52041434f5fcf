"""Waiting for a state: the one loop of tests that looks until something is so."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

SECONDS = 60.0
"""How long a busy machine may take to what is done at once."""


async def until(
    condition: Callable[[], object], seconds: float = SECONDS, *, found: Callable[[], object] | None = None
) -> None:
    """Return once the condition is true, or fail with its source and what `found` returns.

    The time is that of the loop, which may be a virtual one.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    while not condition():
        if now() > deadline:
            seen = f"; found {found()!r}" if found is not None else ""
            raise AssertionError(f"not so within {seconds:g} s: {_source(condition)}{seen}")
        await asyncio.sleep(0.005)


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
