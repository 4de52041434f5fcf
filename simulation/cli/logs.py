"""Structured logs: configured once, always on stderr."""

from __future__ import annotations

import logging
import os
import sys

from fencepost.coordinator.protocol.errors import FencepostError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(default: str = "warning") -> None:
    """Send structlog's events to stderr: for people on a terminal, else one JSON object a line.

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
            # The pretty one shows local variables, and these may hold what a client sent to log in.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[name.lower()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
