"""Exceptions that a scenario raises in threads, and the responses of handlers to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from fencepost.member.base.errors import FatalMemberError
from fencepost.member.streams.handler import StreamThreadExceptionResponse

ANSWERS: Final = ("SHUTDOWN_CLIENT", "raises", "nonsense")
"""Responses that "any" stands for, in addition to REPLACE_THREAD."""
SHUTS_APPLICATION_DOWN: Final = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION.name
PLACES: Final = ("processing", "poll", "callback")


class Sudden(BaseException):
    """An exception that no `except Exception` catches."""


_ANYWHERE: Final = (ValueError, Sudden, KeyboardInterrupt, SystemExit)
_KINDS: Final[Mapping[str, tuple[type[BaseException], ...]]] = {
    "processing": (*_ANYWHERE, asyncio.CancelledError),
    "poll": _ANYWHERE,
    "callback": (ValueError, RuntimeError),  # a callback runs in the member's own task
    "global": _ANYWHERE,
}


GLOBAL_FAILURES: Final = _KINDS["global"]
"""Exceptions that a global thread may meet before it has caught up: the caller that started the client gets
them."""


class Injected:
    """One failure that waits for a thread: the exception, and the response of the handler."""

    __slots__ = ("answer", "error", "where")

    def __init__(self, answer: str, where: str, kind: type[BaseException]) -> None:
        self.answer = answer
        self.where = where
        self.error = kind("injected")
        self.error.injected = self  # type: ignore[attr-defined]

    @classmethod
    def draw(cls, answer: str, where: str, rng: random.Random) -> Injected:
        """Return a failure that can be raised there; response and place are drawn if they are "any"."""
        if answer == "any":
            answer = "REPLACE_THREAD" if rng.random() < 0.5 else rng.choice(ANSWERS)
        if where == "any":
            where = rng.choice(PLACES)
        return cls(answer, where, rng.choice(_KINDS[where]))

    @classmethod
    def of(cls, answer: str, where: str, kind: str) -> Injected:
        """Return the failure that was drawn elsewhere, by the name of its exception."""
        return cls(answer, where, next(each for each in _KINDS[where] if each.__name__ == kind))

    @property
    def kind(self) -> str:
        """The name of its exception."""
        return type(self.error).__name__


def injected_of(error: BaseException) -> Injected | None:
    """Return the injected failure behind a thread's exception; None if it was not injected."""
    injected = getattr(error.__cause__ or error, "injected", None)
    return injected if isinstance(injected, Injected) else None


def is_refusal(error: BaseException) -> bool:
    """Return true if the group refuses the member for good: no other thread would fare better."""
    return isinstance(error.__cause__ or error, FatalMemberError)


def answer(error: BaseException) -> StreamThreadExceptionResponse:
    """Return the handler's response. A failure that was not injected is survived, unless it is a refusal."""
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
    """Return true if the response is to shut the client down, on its own."""
    injected = injected_of(error)
    return is_refusal(error) if injected is None else injected.answer in ANSWERS


def asks_for_shutdown(error: BaseException) -> bool:
    """Return true if the response is to shut the whole application down."""
    injected = injected_of(error)
    return injected is not None and injected.answer == SHUTS_APPLICATION_DOWN


def said(error: BaseException) -> tuple[str, str]:
    """Return the handler's injected response, and the exception's place; empty if it was not injected."""
    injected = injected_of(error)
    return ("", "") if injected is None else (injected.answer, injected.where)
