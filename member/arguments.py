"""What members and applications are told, checked before anything starts: what they have in common."""

from __future__ import annotations


def check_whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number within bounds.

    :raises TypeError: if it is no whole number.
    :raises ValueError: if it is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be a whole number, got {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"{low} to {high:,}"
        raise ValueError(f"{name} should be {bounds}, got {value}")
    return value
