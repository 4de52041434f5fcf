"""Making a failing schedule small: fewer steps that still fail (delta debugging)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def shrink(
    items: Sequence[T], still_fails: Callable[[tuple[T, ...]], Awaitable[bool]], *, tries: int = 200
) -> tuple[T, ...]:
    """A part of the items that fails as they do and has none to spare, as far as so many tries tell.

    Order is kept. `items` are taken to fail.
    """
    kept = tuple(items)
    parts = 2
    while len(kept) >= 2 and tries > 0:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            tries -= 1
            if without and await still_fails(without):
                kept, parts = without, max(parts - 1, 2)
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(kept))
    return kept
