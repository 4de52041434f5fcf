"""The log output of members and applications for people: to structlog, or to the standard library."""

from __future__ import annotations

import logging

import structlog

_logger = structlog.get_logger("fencepost.member")
_standard = logging.getLogger("fencepost.member")


def is_logged(level: int) -> bool:
    """Return true if events of this level reach a log."""
    return structlog.is_configured() or _standard.isEnabledFor(level)


def log(level: int, event: str, **fields: object) -> None:
    """Log as the process has configured; without a configuration, through the standard library."""
    if structlog.is_configured():
        _logger.log(level, event, **fields)
    elif _standard.isEnabledFor(level):
        error = fields.pop("exc_info", None)
        said = " ".join([event, *(f"{name}={value}" for name, value in fields.items())])
        _standard.log(level, said, exc_info=error if isinstance(error, BaseException) else None)
