"""Checks of the arguments of members and applications before anything starts: those that they share."""

from __future__ import annotations

import inspect
from typing import TypeVar

T = TypeVar("T")


def check_whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """Check that a value is a whole number within bounds.

    :raises TypeError: if it is not a whole number.
    :raises ValueError: if it is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be a whole number, got {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"{low} to {high:,}"
        raise ValueError(f"{name} should be {bounds}, got {value}")
    return value


def check_function(name: str, value: object) -> None:
    """Check that this is a plain function, or None.

    :raises TypeError: if it can't be called, or is async.
    """
    call = getattr(value, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    if value is not None and (not callable(value) or any(map(inspect.iscoroutinefunction, (value, call)))):
        raise TypeError(f"{name} should be a plain function, got {value!r}")


def check_callable(name: str, value: T, what: str) -> T:
    """Return the value, which must be None or a function. The function may be async.

    :raises TypeError: if it can't be called; `what` describes what was expected.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} should be {what}, got {value!r}")
    return value


def refused_awaitable(name: str, returned: object) -> str | None:
    """Describe the error if a plain function returned an awaitable, which is never awaited; else return None.

    Return None if it did not. A task or a future runs without being awaited, so it is fine. A coroutine is
    closed.
    """
    runs_by_itself = callable(getattr(returned, "add_done_callback", None))
    if returned is None or runs_by_itself or not inspect.isawaitable(returned):
        return None
    if inspect.iscoroutine(returned):
        returned.close()
    shown = getattr(returned, "__qualname__", None) or repr(returned)
    return (
        f"{name} returned {shown}, which is not awaited: {name} should be a plain function; to start async"
        " work in it, write asyncio.create_task(...), and keep the task"
    )


def check_methods(name: str, value: object, *methods: str, plain: bool = False) -> None:
    """Check that this is an object with these methods, or None. `plain` refuses async methods.

    :raises TypeError: if it lacks one, or has an async one that should be plain.
    """
    missing = [] if value is None else [each for each in methods if not callable(getattr(value, each, None))]
    if missing:
        raise TypeError(f"{name} should have {_listed(methods)}; {value!r} has no {' and no '.join(missing)}")
    if plain and value is not None:
        for each in methods:
            if inspect.iscoroutinefunction(getattr(value, each)):
                raise TypeError(f"{name} should have plain methods, and {each} of {value!r} is async")


def _listed(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
