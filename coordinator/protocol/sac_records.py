"""The facts of a coordinator of single active consumers. Their numbers are ours: RabbitMQ keeps commands."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.sac import ConnectionId, ConsumerStatus


class SacGroupKey(msgspec.Struct, frozen=True, tag=130, array_like=True, order=True, gc=False):
    """One group."""

    vhost: str
    stream: str
    consumer_name: str


class SacConsumer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member of a group: a subscription of a connection."""

    connection: ConnectionId
    subscription_id: int
    owner: str
    status: ConsumerStatus
    since_ms: int
    """Time at which the status was last set, in ms."""


class SacGroupValue(msgspec.Struct, frozen=True, tag=130, array_like=True, gc=False):
    """A group's members, at least one, in the order in which they are chosen from."""

    partition_index: int
    consumers: tuple[SacConsumer, ...]


class SacConnectionKey(msgspec.Struct, frozen=True, tag=131, array_like=True, gc=False):
    """One connection whose groups are not those that it has members in."""

    connection: ConnectionId


class SacConnectionValue(msgspec.Struct, frozen=True, tag=131, array_like=True, gc=False):
    """The groups to act on when the connection ends; no groups after its node was lost."""

    groups: tuple[SacGroupKey, ...]
    """Sorted."""


class SacConfigurationKey(msgspec.Struct, frozen=True, tag=132, array_like=True, gc=False):
    """The configuration; there is one."""


class SacConfigurationValue(msgspec.Struct, frozen=True, tag=132, array_like=True, gc=False):
    """The configuration that was last set."""

    conf: dict[str, int]


SacRecordKey: TypeAlias = SacGroupKey | SacConnectionKey | SacConfigurationKey
SacRecordValue: TypeAlias = SacGroupValue | SacConnectionValue | SacConfigurationValue


class SacRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One fact; with value None, its end."""

    key: SacRecordKey
    value: SacRecordValue | None
