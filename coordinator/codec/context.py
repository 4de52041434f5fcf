"""The context of a request: what its header and its connection say in addition to its body."""

from __future__ import annotations

from typing import NamedTuple


class RequestContext(NamedTuple):
    """The client that sent a request, and the request's version."""

    api_version: int
    client_id: str
    client_host: str
    """The peer's address as Kafka prints it: "/127.0.0.1"."""
