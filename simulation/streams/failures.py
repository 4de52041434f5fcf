"""Exceptions that a scenario lets threads meet, and what handlers answer to them."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from fencepost.member.streams.handler import StreamThreadExceptionResponse

ANSWERS: Final = ("SHUTDOWN_CLIENT", "raises", "nonsense")
"""What "any" stands for, beside REPLACE_THREAD."""
SHUTS_APPLICATION_DOWN: Final = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION.name
PLACES: Final = ("processing", "poll", "callback")


class Sudden(BaseException):
    """Something that no `except Exception` sees."""


class Injected:
    """One failure that waits for a thread: the exception, and the answer of the handler."""

    __slots__ = ("answer", "error", "where")

    def __init__(self, answer: str, where: str, rng: random.Random) -> None:
        if answer == "any":
            answer = "REPLACE_THREAD" if rng.random() < 0.5 else rng.choice(ANSWERS)
        self.answer = answer
        self.where = rng.choice(PLACES) if where == "any" else where
        kinds: tuple[type[BaseException], ...] = (ValueError, Sudden, KeyboardInterrupt, SystemExit)
        if self.where == "callback":
            kinds = (ValueError, RuntimeError)  # a callback runs in the member's own task
        elif self.where == "processing":
            kinds = (*kinds, asyncio.CancelledError)
        self.error = rng.choice(kinds)("injected")
        self.error.injected = self  # type: ignore[attr-defined]


def injected_of(error: BaseException) -> Injected | None:
    """What a thread's exception came from; None if nobody injected it."""
    injected = getattr(error.__cause__ or error, "injected", None)
    return injected if isinstance(injected, Injected) else None


def answer(injected: Injected | None) -> StreamThreadExceptionResponse:
    """The handler's answer; a failure that nobody injected is survived."""
    if injected is None:
        return StreamThreadExceptionResponse.REPLACE_THREAD
    if injected.answer == "raises":
        raise LookupError("the handler fails, too")
    if injected.answer == "nonsense":
        return "REPLACE_THREAD"  # type: ignore[return-value]  # which is what this is about
    return StreamThreadExceptionResponse[injected.answer]


def shuts_down(injected: Injected | None) -> bool:
    """Whether the client is to be shut down, on its own, after such an answer."""
    return injected is not None and injected.answer in ANSWERS
