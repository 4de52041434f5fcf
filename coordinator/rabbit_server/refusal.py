"""The one exception that carries a response code."""

from __future__ import annotations

from fencepost.coordinator.rabbit_codec.codes import ResponseCode


class Refused(Exception):
    """A request can't be done; it is answered with this code, and nothing has changed."""

    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.code = code
