"""The vocabulary of single active consumers: inputs, replies and effects of a stream's coordinator.

A group is all single-active-consumer subscriptions of one stream under one consumer name, in one virtual
host. Its members are subscriptions of connections. The names are RabbitMQ's, after its stream coordinator.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

ConnectionId: TypeAlias = str
"""One client's connection on one node, written `NAME@NODE`; a client that connects again has another."""

SIMPLE: Final = -1
"""Partition index of a plain stream; a partition of a super stream has 0 or more."""
DEFAULT_VHOST: Final = "/"
DISCONNECTED_TIMEOUT: Final = "disconnected_timeout"
"""The one key of the configuration, in milliseconds."""
DEFAULT_DISCONNECTED_TIMEOUT_MS: Final = 60_000


def node_of(connection: ConnectionId) -> str:
    """Return the node that a connection is on."""
    return connection.rpartition("@")[2]


class Connectivity(enum.StrEnum):
    """The state of a consumer's connection, as far as the coordinator knows."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    """Its node can't be reached; the consumer may well be running."""
    FORGOTTEN = "forgotten"
    """It was disconnected for the whole timeout, and the group continues without it."""
    PRESUMED_DOWN = "forgotten"
    """RabbitMQ's word for forgotten."""

    @classmethod
    def _missing_(cls, value: object) -> Connectivity | None:
        return cls.FORGOTTEN if value in ("presumed_down", "presumed down") else None


class Activity(enum.StrEnum):
    """The activity that the coordinator wants of a consumer."""

    WAITING = "waiting"
    ACTIVE = "active"
    DEACTIVATING = "deactivating"
    """The server asked it to step down, and it has not responded yet."""


class ConsumerStatus(enum.StrEnum):
    """The status of a consumer: connectivity and activity in one.

    Two of the nine combinations are never reached: a consumer that is stepping down counts as waiting once
    its connection is lost.
    """

    UNREGISTERED = "UNREGISTERED"
    """The consumer is in no group. The coordinator stores no such consumer."""
    CONNECTED_WAITING = "CONNECTED_WAITING"
    """The consumer is connected and not active."""
    CONNECTED_ACTIVE = "CONNECTED_ACTIVE"
    """The consumer is connected and active."""
    CONNECTED_DEACTIVATING = "CONNECTED_DEACTIVATING"
    """The consumer is connected and has been asked to step down."""
    DISCONNECTED_WAITING = "DISCONNECTED_WAITING"
    """The connection is lost, and the consumer was not active."""
    DISCONNECTED_ACTIVE = "DISCONNECTED_ACTIVE"
    """The connection is lost, and the consumer may still be active."""
    FORGOTTEN_WAITING = "FORGOTTEN_WAITING"
    """The connection was lost for the disconnected timeout; the consumer was not active."""
    FORGOTTEN_ACTIVE = "FORGOTTEN_ACTIVE"
    """The connection was lost for the disconnected timeout; the consumer was active."""

    @property
    def connectivity(self) -> Connectivity:
        """The first half.

        :raises ValueError: if it is in no group.
        """
        return Connectivity(self.value.partition("_")[0].lower())

    @property
    def activity(self) -> Activity:
        """The second half.

        :raises ValueError: if it is in no group.
        """
        return Activity(self.value.partition("_")[2].lower())


class SacError(enum.StrEnum):
    """The error that refuses a command."""

    PARTITION_INDEX_CONFLICT = "partition_index_conflict"
    """The group exists and was registered with another partition index."""
    NOT_FOUND = "not_found"
    """There is no such group."""
    UNKNOWN_COMMAND = "unknown_command"
    COORDINATOR_UNAVAILABLE = "coordinator_unavailable"
    """The command was not written, or no coordinator could be reached: it may be sent again."""


# -- commands ---------------------------------------------------------------------------------------------


class RegisterConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A connection subscribes; it is a member from now on, active or waiting."""

    stream: str
    consumer_name: str
    connection: ConnectionId
    subscription_id: int
    partition_index: int = SIMPLE
    owner: str = ""
    """The human-readable name of the connection."""
    vhost: str = DEFAULT_VHOST


class UnregisterConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A connection unsubscribes."""

    stream: str
    consumer_name: str
    connection: ConnectionId
    subscription_id: int
    vhost: str = DEFAULT_VHOST


class ActivateConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer stepped down, or an operator asks: the group shall choose its active consumer."""

    stream: str
    consumer_name: str
    vhost: str = DEFAULT_VHOST


class ConnectionReconnected(msgspec.Struct, frozen=True):
    """A connection responds to `CheckConnection`: it is alive and its node can be reached."""

    connection: ConnectionId


class PurgeNodes(msgspec.Struct, frozen=True):
    """Nodes left the cluster for good, and all connections on them."""

    nodes: tuple[str, ...]


class UpdateConfiguration(msgspec.Struct, frozen=True):
    """The configuration is this from now on, as a whole."""

    conf: dict[str, int]


class EvaluateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An operator repairs a group: keep only members that are connected, and not among the dead."""

    stream: str
    consumer_name: str
    dead: tuple[ConnectionId, ...] = ()
    vhost: str = DEFAULT_VHOST


# -- events -----------------------------------------------------------------------------------------------


class DownReason(enum.StrEnum):
    """Why a connection is down. Others than these count as an end of the connection."""

    NORMAL = "normal"
    KILLED = "killed"
    NOPROC = "noproc"
    """The connection had ended before it was watched."""
    NOCONNECTION = "noconnection"
    """Its node can't be reached: the state of the connection is unknown."""


class ConnectionDown(msgspec.Struct, frozen=True):
    """A connection that is watched ended, or its node was lost."""

    connection: ConnectionId
    reason: str = DownReason.NORMAL


class NodeUp(msgspec.Struct, frozen=True):
    """A node can be reached again."""

    node: str


class DisconnectedTimeout(msgspec.Struct, frozen=True):
    """A connection's timer is over: its disconnected consumers are forgotten."""

    connection: ConnectionId


class LeaderChanged(msgspec.Struct, frozen=True):
    """This coordinator leads from now on: it has to set up its watches and timers again."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Time to look after nodes that left the cluster, and after the configuration; every 30 s by default."""

    nodes: tuple[str, ...]
    """All nodes of the cluster, running or not; empty if they are unknown."""
    disconnected_timeout_ms: int = DEFAULT_DISCONNECTED_TIMEOUT_MS
    """The timeout that is configured now, in ms."""


# -- answers ----------------------------------------------------------------------------------------------


class SacReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a command; no error means ok."""

    error: SacError | None = None
    is_active: bool | None = None
    """In the reply to a registration: true if the new consumer is the active one."""


class NotifyConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """Tell a connection that one of its consumers is active now, or has to step down."""

    connection: ConnectionId
    subscription_id: int
    stream: str
    consumer_name: str
    active: bool
    stepping_down: bool = False
    """True if the coordinator waits for an `ActivateConsumer` in response."""


class CheckConnection(msgspec.Struct, frozen=True):
    """Ask a connection whether it is alive; it responds with `ConnectionReconnected`."""

    connection: ConnectionId


class MonitorConnection(msgspec.Struct, frozen=True):
    """Watch a connection: one `ConnectionDown` when it ends, or immediately if it has ended."""

    connection: ConnectionId


class DemonitorConnection(msgspec.Struct, frozen=True):
    """Watch a connection no more."""

    connection: ConnectionId


class MonitorNode(msgspec.Struct, frozen=True):
    """Watch a node: `NodeUp` when it can be reached again."""

    node: str


class StartTimer(msgspec.Struct, frozen=True):
    """A connection's timer runs. The coordinator times it itself: this is for observers."""

    connection: ConnectionId
    delay_ms: int


SacCommand: TypeAlias = (
    RegisterConsumer
    | UnregisterConsumer
    | ActivateConsumer
    | ConnectionReconnected
    | PurgeNodes
    | UpdateConfiguration
    | EvaluateGroup
)
SacEvent: TypeAlias = ConnectionDown | NodeUp | DisconnectedTimeout | LeaderChanged | Tick
SacEffect: TypeAlias = (
    NotifyConsumer | CheckConnection | MonitorConnection | DemonitorConnection | MonitorNode | StartTimer
)
