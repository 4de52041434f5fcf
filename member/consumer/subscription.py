"""What a member subscribes to."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """Topic names, a regular expression in RE2's syntax, or both: what either matches counts."""

    names: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    regex: str | None = None

    @classmethod
    def of(cls, topics: Iterable[str], pattern: str | None) -> Subscription:
        """The subscription in its canonical form; an empty pattern is no pattern."""
        return cls(tuple(sorted(set(topics))), pattern or None)

    def __bool__(self) -> bool:
        return bool(self.names) or self.regex is not None


NO_SUBSCRIPTION = Subscription()
