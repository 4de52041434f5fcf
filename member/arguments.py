"""What members and applications are told, checked before anything starts: what they have in common."""

from __future__ import annotations

import inspect


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


def check_function(name: str, value: object) -> None:
    """See to it that this is a plain function, or None.

    :raises TypeError: if it can't be called, or is async.
    """
    call = getattr(value, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    if value is not None and (not callable(value) or any(map(inspect.iscoroutinefunction, (value, call)))):
        raise TypeError(f"{name} should be a plain function, got {value!r}")


def check_methods(name: str, value: object, *methods: str) -> None:
    """See to it that this is an object with these methods, or None.

    :raises TypeError: if it lacks one.
    """
    missing = [] if value is None else [each for each in methods if not callable(getattr(value, each, None))]
    if missing:
        raise TypeError(f"{name} should have {_listed(methods)}; {value!r} has no {' and no '.join(missing)}")


def _listed(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
