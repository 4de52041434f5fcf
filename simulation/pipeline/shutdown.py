"""Keeps py4j and Spark from telling, with tracebacks, that their JVM has ended: who waits for it is told."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

_OF_PY4J = ("", "py4j.clientserver", "py4j.java_gateway")
"""A filter sees what is logged by its own logger only; some of py4j logs by the root's."""


@contextlib.contextmanager
def end_unsaid() -> Iterator[None]:
    """Nothing is logged of a JVM's end in here, whoever ends it."""
    loggers = [logging.getLogger(name) for name in _OF_PY4J]
    for each in loggers:
        each.addFilter(_is_worth_saying)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(_is_worth_saying)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """A filter for py4j's loggers, which say that Ctrl-C came while it waited, or that the JVM went."""
    error = None if record.exc_info is None else record.exc_info[1]
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Py4JNetworkError":
        return False
    return not (isinstance(error, OSError) and record.name.startswith("py4j."))


def silence_accumulators(context: SparkContext) -> None:
    """The server of accumulators prints whatever ends its connection; at the JVM's end that is no news.

    Who is ended by `timeout`, or by Ctrl-C in a terminal, is ended together with the JVM.
    """
    server: Any = context._accumulatorServer
    if server is not None:
        server.handle_error = _but_of_ends(server.handle_error)


def _but_of_ends(told: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    from pyspark.errors import PySparkRuntimeError

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError | PySparkRuntimeError):
            told(request, client_address)

    return handle_error
