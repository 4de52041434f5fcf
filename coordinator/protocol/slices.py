"""Long work in slices: a generator that yields whenever others may have a turn, and returns its result.

The shell decides what happens in between. A server lets the loop serve other clients; a caller that has
nobody to wait for runs all slices at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Sliced: TypeAlias = Generator[None, None, T]
"""Work that returns a `T` once it was resumed often enough."""


def at_once(work: Sliced[T]) -> T:
    """Run all slices without a pause and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result
