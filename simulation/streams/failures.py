"""Exceptions that a scenario lets threads meet, and what handlers answer to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from fencepost.member.base.errors import FatalMemberError
from fencepost.member.streams.handler import StreamThreadExceptionResponse

ANSWERS: Final = ("SHUTDOWN_CLIENT", "raises", "nonsense")
"""What "any" stands for, beside REPLACE_THREAD."""
SHUTS_APPLICATION_DOWN: Final = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION.name
PLACES: Final = ("processing", "poll", "callback")


class Sudden(BaseException):
    """Something that no `except Exception` sees."""


_ANYWHERE: Final = (ValueError, Sudden, KeyboardInterrupt, SystemExit)
_KINDS: Final[Mapping[str, tuple[type[BaseException], ...]]] = {
    "processing": (*_ANYWHERE, asyncio.CancelledError),
    "poll": _ANYWHERE,
    "callback": (ValueError, RuntimeError),  # a callback runs in the member's own task
    "global": _ANYWHERE,
}


GLOBAL_FAILURES: Final = _KINDS["global"]
"""What a global thread may meet before it has caught up: it goes to whoever started the client."""


class Injected:
    """One failure that waits for a thread: the exception, and the answer of the handler."""

    __slots__ = ("answer", "error", "where")

    def __init__(self, answer: str, where: str, kind: type[BaseException]) -> None:
        self.answer = answer
        self.where = where
        self.error = kind("injected")
        self.error.injected = self  # type: ignore[attr-defined]

    @classmethod
    def draw(cls, answer: str, where: str, rng: random.Random) -> Injected:
        """One of a kind that can be raised there; the answer and the place are drawn where they are "any"."""
        if answer == "any":
            answer = "REPLACE_THREAD" if rng.random() < 0.5 else rng.choice(ANSWERS)
        if where == "any":
            where = rng.choice(PLACES)
        return cls(answer, where, rng.choice(_KINDS[where]))

    @classmethod
    def of(cls, answer: str, where: str, kind: str) -> Injected:
        """The one that was drawn elsewhere, by the name of its exception."""
        return cls(answer, where, next(each for each in _KINDS[where] if each.__name__ == kind))

    @property
    def kind(self) -> str:
        """The name of its exception."""
        return type(self.error).__name__


def injected_of(error: BaseException) -> Injected | None:
    """What a thread's exception came from; None if nobody injected it."""
    injected = getattr(error.__cause__ or error, "injected", None)
    return injected if isinstance(injected, Injected) else None


def is_refusal(error: BaseException) -> bool:
    """Whether the group refuses the member for good: no other thread would fare better."""
    return isinstance(error.__cause__ or error, FatalMemberError)


def answer(error: BaseException) -> StreamThreadExceptionResponse:
    """The handler's answer; a failure that nobody injected is survived, unless it is a refusal."""
    injected = injected_of(error)
    if injected is None:
        if is_refusal(error):
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        return StreamThreadExceptionResponse.REPLACE_THREAD
    if injected.answer == "raises":
        raise LookupError("the handler fails, too")
    if injected.answer == "nonsense":
        return "REPLACE_THREAD"  # type: ignore[return-value]  # which is what this is about
    return StreamThreadExceptionResponse[injected.answer]


def shuts_down(error: BaseException) -> bool:
    """Return true if the client is to be shut down, on its own, after the answer."""
    injected = injected_of(error)
    return is_refusal(error) if injected is None else injected.answer in ANSWERS


def asks_for_shutdown(error: BaseException) -> bool:
    """Return true if the answer is that the whole application is to be shut down."""
    injected = injected_of(error)
    return injected is not None and injected.answer == SHUTS_APPLICATION_DOWN


def said(error: BaseException) -> tuple[str, str]:
    """What the handler was made to answer, and where the exception was injected; empty if nobody did."""
    injected = injected_of(error)
    return ("", "") if injected is None else (injected.answer, injected.where)
