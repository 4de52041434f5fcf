"""Structured logs: configured once, always on stderr, and with a limit on repeated lines.

If a client connects to us again and again, or a library of ours to a broker, the line is logged once a minute
with the number of repeats.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Final

from fencepost.coordinator.protocol.errors import FencepostError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

SAID_AGAIN_S: Final = 60.0
"""Time until a repeated line is logged again, in seconds."""
_MOST_KNOWN: Final = 1_000
_OF_CLIENTS: Final = frozenset({"connection_closed", "proxy_closed_client", "proxy_closed_broker"})


class Repeats:
    """Lets a repeated line through once a minute, with the number of repeats."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[Hashable, tuple[float, int]] = {}
        """For each line, the time when it was last let through and the number of times that it was held back
        since."""

    def since(self, line: Hashable) -> int | None:
        """Return how often the line was held back since it was last let through; None if it is held back now
        too."""
        now = self._clock()
        said_at, held = self._said.get(line, (-SAID_AGAIN_S, 0))
        if now - said_at < SAID_AGAIN_S:
            self._said[line] = said_at, held + 1
            return None
        if len(self._said) >= _MOST_KNOWN:
            self._said.clear()
        self._said[line] = now, 0
        return held

    def of_others(self, record: logging.LogRecord) -> bool:
        """Filter the lines of libraries; return true to log one."""
        text = record.getMessage()
        held = self.since((record.name, text))
        if held:
            record.msg, record.args = f"{text} ({held:,} more times before this)", None
        return held is not None

    def of_clients(self, logger: object, method: str, event: MutableMapping[str, Any]) -> Any:
        """Process an event of structlog: drop repeated reasons for which connections of a client
        were closed."""
        from structlog import DropEvent

        if event.get("event") in _OF_CLIENTS:
            host = str(event.get("peer", "")).rpartition(":")[0]
            held = self.since((host, event.get("reason")))
            if held is None:
                raise DropEvent
            if held:
                event["times_before"] = held
        return event


def configure_logs(default: str = "warning") -> None:
    """Send structlog's events to stderr: for people on a terminal, otherwise as one JSON object a line.

    Lines that libraries log by `logging` look the same, if they are warnings or errors.

    The environment variable FENCEPOST_LOG names the level: debug, info, warning or error.

    :raises FencepostError: if it names another.
    """
    import structlog

    name = os.environ.get("FENCEPOST_LOG") or default
    if name.lower() not in LEVELS:
        raise FencepostError(f"FENCEPOST_LOG={name}: expected one of {', '.join(LEVELS)}")
    terminal = sys.stderr.isatty()
    renderer = (
        structlog.dev.ConsoleRenderer(
            colors=not os.environ.get("NO_COLOR"),
            # The pretty formatter shows local variables, which may hold a client's password.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if terminal
        else structlog.processors.JSONRenderer()
    )
    level, repeats = LEVELS[name.lower()], Repeats()
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if terminal else [structlog.processors.format_exc_info]),
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, repeats.of_clients, *common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if logging.lastResort is not None:
        logging.lastResort.setLevel(max(level, logging.WARNING))
        logging.lastResort.filters = [repeats.of_others]
        logging.lastResort.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            )
        )
