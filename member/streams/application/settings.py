"""The settings of an application, checked before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.arguments import check_whole

Process: TypeAlias = Callable[..., Awaitable[None]]
"""`async def process(partition, records)`, or with a third parameter `(partition, records, store)`."""


class GlobalThread(NamedTuple):
    """The work of the global thread of a client: it reads whole topics, in every client."""

    topics: Sequence[str]
    process: Process


class Processing(NamedTuple):
    """A processing function, and true if it wants the store."""

    function: Process
    wants_store: bool

    def call(self, partition: TopicPartition, records: Sequence[Any], store: Any) -> Awaitable[None]:
        """Process the records of one partition."""
        if self.wants_store:
            return self.function(partition, records, store)
        return self.function(partition, records)


def check_process(process: object, name: str = "process", *, most: int = 3) -> Processing:
    """Check the processing function.

    :raises TypeError: if it is not async, or does not take a partition and its records.
    """
    call = getattr(process, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    function = getattr(process, "func", process)  # of a functools.partial
    if not callable(process) or not any(map(inspect.iscoroutinefunction, (process, function, call))):
        raise TypeError(f"{name} should be an async function of a partition and its records, got {process!r}")
    try:
        signature = inspect.signature(process)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} can't be called with a partition and its records: {error}") from error
    for arguments in range(2, most + 1):
        try:
            signature.bind(*[None] * arguments)
        except TypeError:
            continue
        return Processing(process, wants_store=arguments == 3)
    store = ", and a store if it wants one" if most == 3 else ""
    raise TypeError(
        f"{name} should take a partition and its records{store}; "
        f"it is {getattr(process, '__name__', process)}{signature}"
    )


def check_topics(topics: object, name: str = "topics") -> tuple[str, ...]:
    """The topics.

    :raises TypeError: if they are not several texts.
    :raises ValueError: if the list is empty, or if a topic is blank or there twice.
    """
    if isinstance(topics, str | bytes) or not isinstance(topics, Iterable):
        raise TypeError(f"{name} should be a list of names, got {topics!r}")
    names = tuple(topics)
    if not all(isinstance(each, str) for each in names):
        raise TypeError(f"{name} should be a list of names, got {names!r}")
    if not names or not all(each.strip() for each in names):
        raise ValueError(f"{name} should name at least one topic, and no blank one; got {names!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"{name} names a topic twice: {names!r}")
    return names


def check_threads(threads: object, *, global_thread: bool) -> int:
    """Check the number of threads.

    :raises TypeError: if it is not a whole number.
    :raises ValueError: if it is negative, or 0 without a global thread.
    """
    number = check_whole("threads", threads, 0)
    if not number and not global_thread:
        raise ValueError("threads should be at least 1: without a global thread there is nothing to run")
    return number


def check_seconds(name: str, value: object) -> float:
    """Check a number of seconds.

    :raises TypeError: if it is not a number.
    :raises ValueError: if it is negative, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} should be a number of seconds, got {value!r}")
    if not value >= 0:
        raise ValueError(f"{name} should be 0 s or more, got {value}")
    return value


def check_milliseconds(name: str, value: object, *, zero: bool) -> float:
    """Check a number of milliseconds, which may be 0 or not; return seconds.

    :raises TypeError: if it is not a number.
    :raises ValueError: if it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} should be a number of milliseconds, got {value!r}")
    if not (value >= 0 if zero else value >= 1):
        raise ValueError(f"{name} should be {0 if zero else 1} ms or more, got {value}")
    return value / 1000


def check_flag(name: str, value: object) -> bool:
    """Check that a value is True or False.

    :raises TypeError: if it is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be True or False, got {value!r}")
    return value


def check_text(name: str, value: object) -> str:
    """Check that a text is not blank.

    :raises ValueError: if it is blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is needed, got {value!r}")
    return value
