"""Keeps py4j and Spark from telling, with tracebacks, that their JVM has ended: who waits for it is told."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def is_worth_saying(record: logging.LogRecord) -> bool:
    """A filter for the root logger, by which py4j says that Ctrl-C came while it waited, or the JVM went."""
    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, KeyboardInterrupt) and type(error).__name__ != "Py4JNetworkError"


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
