"""Long work in slices: a generator that yields whenever other work may run, and returns its result.

The shell decides what happens in between. A server lets the loop serve other clients; a caller without other
clients runs all slices in sequence.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

MEDIUM, LARGE = 1, 2
"""Sizes of work, by the memory that it takes: a few MiB, or more."""

Sliced: TypeAlias = Generator[Any, None, T]
"""Work that returns a `T` once it was resumed often enough.

It yields None, or the size that it has from now on: what is `LARGE` stays so. With a size it keeps nothing in
memory meanwhile.
"""


def at_once(work: Sliced[T]) -> T:
    """Run all slices without a pause and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result
