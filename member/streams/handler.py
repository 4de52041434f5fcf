"""The decision after an uncaught exception of a thread (KIP-671): the handler is called, and its result
checked."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fencepost.member.base.arguments import refused_awaitable


class StreamThreadExceptionResponse(enum.Enum):
    """The results that a handler may return; the numbers are Kafka's."""

    REPLACE_THREAD = 0
    """The thread ends, and a new one takes its place."""
    SHUTDOWN_CLIENT = 1
    """All threads of this client end; the client ends in ERROR."""
    SHUTDOWN_APPLICATION = 2
    """All clients of the application (its group) end in ERROR, as far as they can be reached."""


UncaughtExceptionHandler: TypeAlias = Callable[[BaseException], StreamThreadExceptionResponse]
"""Takes the exception, and returns what to do."""

OldExceptionHandler: TypeAlias = Callable[..., None]
"""Takes the thread's name and the exception, or the exception alone, and returns nothing (deprecated)."""


class HandlerDecision(NamedTuple):
    """The action that follows an exception."""

    response: StreamThreadExceptionResponse | None
    """None: the thread ends, and nothing else happens, as with a handler of the old style."""
    complaint: str | None = None
    """Description of the handler's own error."""


def shut_down_client(error: BaseException) -> StreamThreadExceptionResponse:
    """The default handler."""
    return StreamThreadExceptionResponse.SHUTDOWN_CLIENT


def is_old_style(handler: Callable[..., Any]) -> bool:
    """Return true if a handler is old: it takes a thread and an exception, or is annotated to return None."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False
    if signature.return_annotation in (None, "None"):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        each
        for each in signature.parameters.values()
        if each.kind in positional and each.default is inspect.Parameter.empty
    ]
    return len(required) == 2


def check_handler(handler: object) -> Callable[..., Any]:
    """Check a handler.

    :raises TypeError: if it can't be called, is a coroutine function, or takes other arguments.
    """
    if not callable(handler):
        raise TypeError(
            f"handler should be a function of an exception that returns a StreamThreadExceptionResponse, "
            f"got {handler!r}"
        )
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    ):
        raise TypeError("handler should be a plain function: a thread that fails waits for nothing")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return handler
    arguments = (None, None) if is_old_style(handler) and not _takes(signature, 1) else (None,)
    if not _takes(signature, len(arguments)):
        raise TypeError(f"handler should take one argument, the exception; it is {handler!r}{signature}")
    return handler


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


class Handlers:
    """The handlers of one client. If both are set, the new one counts."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: UncaughtExceptionHandler | None = None
        self._old: OldExceptionHandler | None = None

    def add(self, handler: object) -> bool:
        """Use this handler, in place of one of its style. Return true if it is of the old style.

        :raises TypeError: if it can't be one; see `check_handler`.
        """
        checked = check_handler(handler)
        if is_old_style(checked):
            self._old = checked
            return True
        self._new = checked
        return False

    def clear(self) -> None:
        """Forget both: every exception leads to SHUTDOWN_CLIENT."""
        self._new = self._old = None

    def ask(self, thread: str, error: BaseException) -> HandlerDecision:
        """Return the decision about this exception of this thread.

        A handler that raises any exception, or that returns something else, counts as SHUTDOWN_CLIENT.
        """
        if self._new is None and self._old is not None:
            return self._tell_old(self._old, thread, error)
        handler = self._new or shut_down_client
        try:
            response: object = handler(error)
        except BaseException as raised:
            return HandlerDecision(
                StreamThreadExceptionResponse.SHUTDOWN_CLIENT,
                f"the uncaught-exception handler raised {raised!r}: the client is shut down",
            )
        if isinstance(response, StreamThreadExceptionResponse):
            return HandlerDecision(response)
        refused = refused_awaitable("the uncaught-exception handler", response)
        if refused is not None:
            return HandlerDecision(
                StreamThreadExceptionResponse.SHUTDOWN_CLIENT, f"{refused}; the client is shut down"
            )
        return HandlerDecision(
            StreamThreadExceptionResponse.SHUTDOWN_CLIENT,
            f"the uncaught-exception handler returned {response!r}, which is not a "
            "StreamThreadExceptionResponse: the client is shut down",
        )

    @staticmethod
    def _tell_old(handler: OldExceptionHandler, thread: str, error: BaseException) -> HandlerDecision:
        try:
            two = _takes(inspect.signature(handler), 2)
            returned: object = handler(thread, error) if two else handler(error)  # type: ignore[func-returns-value]
        except BaseException as raised:
            return HandlerDecision(None, f"the old uncaught-exception handler raised {raised!r}")
        return HandlerDecision(None, refused_awaitable("the old uncaught-exception handler", returned))
