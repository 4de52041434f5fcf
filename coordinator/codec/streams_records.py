"""Records of streams groups in `__consumer_offsets`: how keys and values are read and written (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.coordinator.codec import group_record_schemas as g
from fencepost.coordinator.codec import streams_record_schemas as s
from fencepost.coordinator.codec.streams_topology import endpoint, pairs, task_ids, topology
from fencepost.coordinator.protocol import streams_records as r
from fencepost.coordinator.protocol.streams import Subtopology, TaskIds, Tasks, TopicInfo
from fencepost.coordinator.protocol.streams_records import StreamsGroupRecordKey, StreamsGroupRecordValue


class StreamsRecordType(NamedTuple):
    """One record type: the forms of its key and its value, and the ways from and to ours."""

    key_form: type
    value_form: type
    read_key: Callable[[dict[str, Any]], StreamsGroupRecordKey]
    read_value: Callable[[dict[str, Any]], StreamsGroupRecordValue]
    write_value: Callable[[Any], Any]


def written_key(key: StreamsGroupRecordKey) -> tuple[int, Any]:
    """The type of a record, and its key's form."""
    record_type = int(type(key).__struct_config__.tag)  # type: ignore[arg-type]  # ours are numbers
    if isinstance(
        key,
        r.StreamsGroupMetadataKey | r.StreamsGroupTargetAssignmentMetadataKey | r.StreamsGroupTopologyKey,
    ):
        return record_type, g.GroupKey(group=key.group_id)
    return record_type, g.MemberKey(group=key.group_id, member=key.member_id)


def written_form(value: StreamsGroupRecordValue) -> Any:
    """The form of a value; its version is 0."""
    return STREAMS_TYPES[int(type(value).__struct_config__.tag)].write_value(value)  # type: ignore[arg-type]


# -- values --------------------------------------------------------------------------------------------------


def _read_metadata(values: dict[str, Any]) -> r.StreamsGroupMetadataValue:
    return r.StreamsGroupMetadataValue(
        epoch=values["epoch"],
        metadata_hash=values["metadata_hash"],
        validated_topology_epoch=values.get("validated_topology_epoch", -1),
        last_assignment_configs=pairs(values.get("last_assignment_configs") or ()),
    )


def _metadata(value: r.StreamsGroupMetadataValue) -> Any:
    configs = value.last_assignment_configs
    return s.StreamsGroupMetadataValueSchema(
        epoch=value.epoch,
        metadata_hash=value.metadata_hash,
        validated_topology_epoch=value.validated_topology_epoch,
        last_assignment_configs=_pairs(configs.items()) if configs else None,
    )


def _read_member(values: dict[str, Any]) -> r.StreamsGroupMemberMetadataValue:
    tags, user_endpoint = pairs(values.pop("client_tags")), endpoint(values.pop("user_endpoint"))
    return r.StreamsGroupMemberMetadataValue(client_tags=tags, user_endpoint=user_endpoint, **values)


def _member(value: r.StreamsGroupMemberMetadataValue) -> Any:
    at = value.user_endpoint
    return s.StreamsMemberMetadataValue(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=None if at is None else s.UserEndpoint(host=at.host, port=at.port),
        client_tags=_pairs(sorted(value.client_tags.items())),
    )


def _read_target_metadata(values: dict[str, Any]) -> r.StreamsGroupTargetAssignmentMetadataValue:
    return r.StreamsGroupTargetAssignmentMetadataValue(
        values["assignment_epoch"], values.get("assignment_timestamp", 0)
    )


def _target_metadata(value: r.StreamsGroupTargetAssignmentMetadataValue) -> Any:
    return s.StreamsTargetMetadataValue(
        assignment_epoch=value.assignment_epoch, assignment_timestamp=value.assignment_timestamp_ms
    )


def _read_tasks(values: dict[str, Any], suffix: str = "") -> Tasks:
    return Tasks(
        task_ids(values[f"active_tasks{suffix}"]),
        task_ids(values[f"standby_tasks{suffix}"]),
        task_ids(values[f"warmup_tasks{suffix}"]),
    )


def _read_target(values: dict[str, Any]) -> r.StreamsGroupTargetAssignmentMemberValue:
    return r.StreamsGroupTargetAssignmentMemberValue(_read_tasks(values))


def _target(value: r.StreamsGroupTargetAssignmentMemberValue) -> Any:
    def written(tasks: TaskIds) -> tuple[s.SubtopologyTasks, ...]:
        return tuple(
            s.SubtopologyTasks(subtopology_id=one, partitions=numbers) for one, numbers in tasks.items()
        )

    tasks = value.tasks
    return s.StreamsTargetMemberValue(
        active_tasks=written(tasks.active),
        standby_tasks=written(tasks.standby),
        warmup_tasks=written(tasks.warmup),
    )


_PENDING = "_pending_revocation"


def _read_current(values: dict[str, Any]) -> r.StreamsGroupCurrentMemberAssignmentValue:
    """Epochs that are not as many as their tasks are left out: the member's stands for them, as in Kafka."""
    epochs: dict[str, dict[int, int]] = {}
    for entry in (*values["active_tasks"], *values[f"active_tasks{_PENDING}"]):
        since = entry.get("assignment_epochs")
        if since is not None and len(since) == len(entry["partitions"]):
            of_subtopology = epochs.setdefault(entry["subtopology_id"], {})
            of_subtopology.update(sorted(zip(entry["partitions"], since, strict=True)))
    return r.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=values["member_epoch"],
        previous_member_epoch=values["previous_member_epoch"],
        state=values["state"],
        assigned=_read_tasks(values),
        pending_revocation=_read_tasks(values, _PENDING),
        assignment_epochs={one: known for one, known in sorted(epochs.items()) if known},
    )


def _current(value: r.StreamsGroupCurrentMemberAssignmentValue) -> Any:
    epochs = value.assignment_epochs
    forms = {}
    for suffix, tasks in (("", value.assigned), (_PENDING, value.pending_revocation)):
        forms[f"active_tasks{suffix}"] = _since(tasks.active, epochs)
        forms[f"standby_tasks{suffix}"] = _since(tasks.standby, {})
        forms[f"warmup_tasks{suffix}"] = _since(tasks.warmup, {})
    return s.StreamsCurrentAssignmentValue(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=value.state,
        **forms,
    )


def _since(tasks: TaskIds, epochs: Mapping[str, Mapping[int, int]]) -> tuple[s.SubtopologyTasksSince, ...]:
    """Epochs go with a subtopology if each of its tasks has one."""
    found = []
    for subtopology_id, numbers in tasks.items():
        known = epochs.get(subtopology_id, {})
        since = tuple(known[number] for number in numbers) if known.keys() >= {*numbers} else None
        form = s.SubtopologyTasksSince(
            subtopology_id=subtopology_id, partitions=numbers, assignment_epochs=since
        )
        found.append(form)
    return tuple(found)


def _read_topology(values: dict[str, Any]) -> r.StreamsGroupTopologyValue:
    found = topology(values)
    return r.StreamsGroupTopologyValue(found.epoch, found.subtopologies)


def _topology(value: r.StreamsGroupTopologyValue) -> Any:
    return s.StreamsTopologyValue(
        epoch=value.epoch, subtopologies=tuple(map(_subtopology, value.subtopologies))
    )


def _subtopology(one: Subtopology) -> s.SubtopologyForm:
    return s.SubtopologyForm(
        subtopology_id=one.subtopology_id,
        source_topics=one.source_topics,
        source_topic_regex=one.source_topic_regex,
        state_changelog_topics=tuple(map(_topic, one.state_changelog_topics)),
        repartition_sink_topics=one.repartition_sink_topics,
        repartition_source_topics=tuple(map(_topic, one.repartition_source_topics)),
        copartition_groups=tuple(
            s.CopartitionGroupForm(
                source_topics=group.source_topics,
                source_topic_regex=group.source_topic_regex,
                repartition_source_topics=group.repartition_source_topics,
            )
            for group in one.copartition_groups
        ),
    )


def _topic(topic: TopicInfo) -> s.TopicInfoForm:
    return s.TopicInfoForm(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=_pairs(topic.configs),
    )


def _pairs(entries: Iterable[tuple[str, str]]) -> tuple[s.Pair, ...]:
    return tuple(s.Pair(key=key, value=value) for key, value in entries)


STREAMS_TYPES: Final[Mapping[int, StreamsRecordType]] = {
    17: StreamsRecordType(
        g.GroupKey,
        s.StreamsGroupMetadataValueSchema,
        lambda key: r.StreamsGroupMetadataKey(key["group"]),
        _read_metadata,
        _metadata,
    ),
    19: StreamsRecordType(
        g.MemberKey,
        s.StreamsMemberMetadataValue,
        lambda key: r.StreamsGroupMemberMetadataKey(key["group"], key["member"]),
        _read_member,
        _member,
    ),
    20: StreamsRecordType(
        g.GroupKey,
        s.StreamsTargetMetadataValue,
        lambda key: r.StreamsGroupTargetAssignmentMetadataKey(key["group"]),
        _read_target_metadata,
        _target_metadata,
    ),
    21: StreamsRecordType(
        g.MemberKey,
        s.StreamsTargetMemberValue,
        lambda key: r.StreamsGroupTargetAssignmentMemberKey(key["group"], key["member"]),
        _read_target,
        _target,
    ),
    22: StreamsRecordType(
        g.MemberKey,
        s.StreamsCurrentAssignmentValue,
        lambda key: r.StreamsGroupCurrentMemberAssignmentKey(key["group"], key["member"]),
        _read_current,
        _current,
    ),
    23: StreamsRecordType(
        g.GroupKey,
        s.StreamsTopologyValue,
        lambda key: r.StreamsGroupTopologyKey(key["group"]),
        _read_topology,
        _topology,
    ),
}
