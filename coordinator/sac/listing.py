"""Listings for people: the groups of a coordinator of single active consumers, and a group's members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from fencepost.coordinator.protocol.sac import DEFAULT_VHOST, Connectivity
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.state import SacState

UNKNOWN_FIELD: Final = "unknown_field"
"""The value of an unknown field."""

_Group: TypeAlias = tuple[SacGroupKey, SacGroupValue]


def described(consumer: SacConsumer) -> str:
    """Return a consumer's state as RabbitMQ shows it, such as `active (connected)` or `waiting (presumed
    down)`."""
    connectivity = consumer.status.connectivity
    shown = "presumed down" if connectivity is Connectivity.FORGOTTEN else connectivity.value
    return f"{consumer.status.activity} ({shown})"


_GROUP_FIELDS: Mapping[str, Callable[[_Group], object]] = {
    "stream": lambda group: group[0].stream,
    "reference": lambda group: group[0].consumer_name,
    "partition_index": lambda group: group[1].partition_index,
    "consumers": lambda group: len(group[1].consumers),
}
_CONSUMER_FIELDS: Mapping[str, Callable[[SacConsumer], object]] = {
    "subscription_id": lambda one: one.subscription_id,
    "connection_name": lambda one: one.owner,
    "state": described,
}


def consumer_groups(
    state: SacState, vhost: str = DEFAULT_VHOST, fields: Sequence[str] = tuple(_GROUP_FIELDS)
) -> list[dict[str, object]]:
    """Return the groups of a virtual host, sorted, as `list_stream_consumer_groups` has them."""
    return [
        _row(fields, _GROUP_FIELDS, (key, state.groups[key]))
        for key in sorted(state.groups)
        if key.vhost == vhost
    ]


def group_consumers(
    state: SacState, key: SacGroupKey, fields: Sequence[str] = tuple(_CONSUMER_FIELDS)
) -> list[dict[str, object]] | None:
    """Return a group's members in their order: `list_stream_group_consumers`. None if there is no such
    group."""
    group = state.groups.get(key)
    return None if group is None else [_row(fields, _CONSUMER_FIELDS, one) for one in group.consumers]


def overview(state: SacState) -> dict[str, object]:
    """Return the number of groups, and the partition index and number of members of each."""
    groups = {
        key: {"num_consumers": len(group.consumers), "partition_index": group.partition_index}
        for key, group in sorted(state.groups.items())
    }
    return {"num_groups": len(groups), "groups": groups}


def _row(
    fields: Sequence[str], getters: Mapping[str, Callable[..., object]], subject: object
) -> dict[str, object]:
    return {field: getters[field](subject) if field in getters else UNKNOWN_FIELD for field in fields}
