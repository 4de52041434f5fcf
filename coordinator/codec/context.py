"""What a request's header and connection say beside its body."""

from __future__ import annotations

from typing import NamedTuple


class RequestContext(NamedTuple):
    """Who asks, and in which version."""

    api_version: int
    client_id: str
    client_host: str
    """The peer's address as Kafka prints it: "/127.0.0.1"."""
