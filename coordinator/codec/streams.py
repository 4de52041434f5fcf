"""StreamsGroupHeartbeat (88) and StreamsGroupDescribe (89), version 0 (KIP-1071).

Tasks that are read become canonical: sorted, without duplicates and empty subtopologies. A topology stays in
the order in which it was sent. Records hold the same tasks and topologies.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from fencepost.coordinator.codec.groups import DescribedWithOperations, operations_of, with_operations
from fencepost.coordinator.codec.layout import ITEMS, Layout, Via, row
from fencepost.coordinator.protocol import streams

_KNOWN = {int(code): code for code in streams.StatusCode}


def task_ids(entries: Iterable[tuple[str, tuple[int, ...]]]) -> streams.TaskIds:
    """Return tasks in canonical form."""
    found: dict[str, set[int]] = {}
    for subtopology, partitions in entries:
        found.setdefault(subtopology, set()).update(partitions)
    return {one: tuple(sorted(numbers)) for one, numbers in sorted(found.items()) if numbers}


def sorted_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return names and values, by name."""
    return dict(sorted(dict(pairs).items()))


TASK_IDS = Via(of=row("subtopology_id", "partitions"), read=task_ids, write=ITEMS)
PAIRS = row("key", "value")
TAGS = Via(of=PAIRS, read=sorted_pairs, write=ITEMS)
ENDPOINT = Layout(streams.Endpoint)
TASKS = Layout(
    streams.Tasks,
    {"active": "active_tasks", "standby": "standby_tasks", "warmup": "warmup_tasks"},
    fields={"active": TASK_IDS, "standby": TASK_IDS, "warmup": TASK_IDS},
)
_TOPIC_INFO = Layout(streams.TopicInfo, {"configs": "topic_configs"}, fields={"configs": PAIRS})
_INTERNAL = {"state_changelog_topics": _TOPIC_INFO, "repartition_source_topics": _TOPIC_INFO}
SUBTOPOLOGY = Layout(
    streams.Subtopology, fields=_INTERNAL | {"copartition_groups": Layout(streams.CopartitionGroup)}
)
_TASK_OFFSET = Layout(streams.TaskOffset)

STREAMS_GROUP_HEARTBEAT_REQUEST = Layout(
    streams.StreamsGroupHeartbeatRequest,
    {"rebalance_timeout_ms": "rebalance_timeout"},
    fields={
        "topology": Layout(streams.Topology, fields={"subtopologies": SUBTOPOLOGY}),
        "active_tasks": TASK_IDS,
        "standby_tasks": TASK_IDS,
        "warmup_tasks": TASK_IDS,
        "user_endpoint": ENDPOINT,
        "client_tags": TAGS,
        "task_offsets": _TASK_OFFSET,
        "task_end_offsets": _TASK_OFFSET,
    },
)


def _statuses(rows: Iterable[tuple[int, str]]) -> tuple[streams.Status, ...]:
    """Leave out an unknown status: newer brokers have more of them."""
    return tuple(streams.Status(_KNOWN[code], detail) for code, detail in rows if code in _KNOWN)


def _role(role: str) -> Any:
    get = operator.attrgetter(role)
    return lambda reply, _: None if reply.tasks is None else get(reply.tasks)


def _heartbeat_reply(values: dict[str, Any], _: int) -> streams.StreamsGroupHeartbeatResponse:
    values.pop("throttle_time")
    roles = [values.pop(f"{role}_tasks") for role in ("active", "standby", "warmup")]
    tasks = None if all(role is None for role in roles) else streams.Tasks(*(role or {} for role in roles))
    return streams.StreamsGroupHeartbeatResponse(**values, tasks=tasks)


_TOPIC_PARTITIONS = Layout(streams.TopicPartitions)
STREAMS_GROUP_HEARTBEAT_RESPONSE = Layout(
    streams.StreamsGroupHeartbeatResponse,
    {
        "heartbeat_interval_ms": "heartbeat_interval",
        "task_offset_interval_ms": "task_offset_interval",
        "partitions_by_endpoint": "partitions_by_user_endpoint",
    },
    fields={
        "status": Via(
            of=row("status_code", "status_detail"),
            read=_statuses,
            write=lambda statuses: tuple((status.code, status.detail) for status in statuses),
        ),
        "active_tasks": TASK_IDS,
        "standby_tasks": TASK_IDS,
        "warmup_tasks": TASK_IDS,
        "partitions_by_endpoint": Layout(
            streams.EndpointPartitions,
            {"endpoint": "user_endpoint", "active": "active_partitions", "standby": "standby_partitions"},
            fields={
                "endpoint": ENDPOINT,
                "active": _TOPIC_PARTITIONS,
                "standby": _TOPIC_PARTITIONS,
            },
        ),
    },
    write={
        "active_tasks": _role("active"),
        "standby_tasks": _role("standby"),
        "warmup_tasks": _role("warmup"),
    },
    read=_heartbeat_reply,
)


def _described(values: dict[str, Any], _: int) -> streams.DescribedStreamsGroup:
    del values["authorized_operations"]
    epoch, subtopologies = values.pop("topology") or (None, ())
    return streams.DescribedStreamsGroup(**values, topology_epoch=epoch, subtopologies=subtopologies or ())


def _topology(described: DescribedWithOperations, _: int) -> tuple[int, Any] | None:
    group = described.group
    return None if group.topology_epoch is None else (group.topology_epoch, group.subtopologies)


STREAMS_GROUP_DESCRIBE_REQUEST = Layout(
    streams.StreamsGroupDescribeRequest, {"include_operations": "include_authorized_operations"}
)
STREAMS_GROUP_DESCRIBE_RESPONSE = Layout(
    streams.StreamsGroupDescribeResponse,
    fields={
        "groups": Layout(
            streams.DescribedStreamsGroup,
            fields={
                "topology": row(
                    "epoch",
                    "subtopologies",
                    fields={"subtopologies": Layout(streams.DescribedSubtopology, fields=_INTERNAL)},
                ),
                "members": Layout(
                    streams.DescribedStreamsMember,
                    fields={
                        "user_endpoint": ENDPOINT,
                        "client_tags": TAGS,
                        "assignment": TASKS,
                        "target_assignment": TASKS,
                    },
                ),
            },
            write={"authorized_operations": operations_of, "topology": _topology},
            read=_described,
            within="group",
        )
    },
    write={"groups": with_operations},
)
