"""The state that all connections share: virtual hosts, users, limits, groups, and nodes."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.coordinator.protocol.sac import DEFAULT_VHOST
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.catalogue import Catalogue
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.coordinator.rabbit_server.stream import Stream
from fencepost.coordinator.sasl.credentials import check_user

if TYPE_CHECKING:
    from fencepost.coordinator.rabbit_server.session import RabbitSession

DEFAULT_USERS: Final = {"guest": "guest"}
LOOPBACK_USERS: Final = frozenset({"guest"})
"""Users with a well-known password: they may connect from this machine only, as in RabbitMQ."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a node, with RabbitMQ's defaults."""

    frame_max: int = 1_048_576
    """Bytes of a frame that a client sends, once its connection is open."""
    heartbeat_s: int = 60
    """The heartbeat interval that Tune proposes, in s; 0 for no heartbeats."""
    max_connections: int = 10_000
    request_timeout_ms: int = 60_000
    """Time that a client may take to respond to ConsumerUpdate, in ms."""
    handshake_timeout_ms: int = 10_000
    """Time that a client may take from connecting to Open, in ms."""


class RabbitCluster:
    """One RabbitMQ, as its stream clients see it. `secret` is random: passwords are kept as digests under it.

    :raises FencepostError: for a name or a password that can't be one.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        now_ms: Callable[[], int],
        secret: bytes,
        users: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        known = DEFAULT_USERS if users is None else users
        for name, password in known.items():
            check_user(name, password)
        self.groups = groups
        self.now_ms = now_ms
        self.limits = limits or Limits()
        self.virtual_hosts = {DEFAULT_VHOST: Catalogue()}
        self.sessions: dict[RabbitSession, None] = {}
        """All that are connected."""
        self.ports: dict[str, int] = {}
        """The port of each node, by its name."""
        self.unfinished_bytes = 0
        """Bytes that arrived on all connections and were not handled yet."""
        self._secret = secret
        self._digests = {name: self._digest(password) for name, password in known.items()}

    def is_user(self, name: str, password: str) -> bool:
        """Return true if the user exists and has that password."""
        return hmac.compare_digest(self._digest(password), self._digests.get(name, b""))

    def _digest(self, password: str) -> bytes:
        """Return the digest that is kept of a password."""
        return hmac.digest(self._secret, password.encode(), "sha256")

    def forget(self, virtual_host: str, stream: Stream) -> None:
        """Notify the publishers and readers of a deleted stream."""
        stream.readers.clear()
        for session in tuple(self.sessions):
            if session.virtual_host == virtual_host:
                session.stream_gone(stream.name, ResponseCode.STREAM_NOT_AVAILABLE)
