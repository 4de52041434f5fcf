"""What ends the handling of a frame early: a refusal, or that nobody is there to ask."""

from __future__ import annotations

from fencepost.coordinator.rabbit_codec.codes import ResponseCode


class RabbitRequestRefused(Exception):
    """A request can't be done; it is answered with this code, and nothing has changed."""

    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SacCoordinatorUnreachable(Exception):
    """The coordinator of groups can't be reached from this node: the connection ends, as in RabbitMQ."""
