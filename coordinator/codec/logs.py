"""Produce (0), Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23).

Produce 13 and Fetch 13 bring topic ids in place of names; Fetch 7 sessions, 11 racks and the preferred read
replica, 12 leader epochs checked by the log, 15 moves the replica id into a tagged field. ListOffsets 7 to 11
add timestamps with a meaning only.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import OfTopic

_READ_COMMITTED = 1
_CONSUMER = -1
"""The replica id of clients."""
_DEBUGGING_CONSUMER = -2
"""The replica id of clients that ask any replica for its offsets."""
_FIRST_VERSION_WITH_RECORD_ERRORS = 8
_FIRST_FETCH_FROM_FOLLOWERS = 11
_FIRST_FETCH_BY_ID = 13


def decode_produce(values: dict[str, Any], context: RequestContext) -> logs.ProduceRequest:
    """Produce, versions 3 to 13."""
    return logs.ProduceRequest(
        transactional_id=values["transactional_id"],
        acks=values["acks"],
        timeout_ms=values["timeout"],
        api_version=context.api_version,
        topics=tuple(
            OfTopic(
                name=topic.get("name"),
                topic_id=topic.get("topic_id"),
                partitions=tuple(
                    logs.ProducedPartition(one["index"], one["records"]) for one in topic["partition_data"]
                ),
            )
            for topic in values["topic_data"]
        ),
    )


def encode_produce(reply: logs.ProduceResponse, shape: Shape) -> Any:
    """Produce, versions 3 to 13."""
    return shape.ProduceResponse(
        responses=tuple(
            shape.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    shape.PartitionProduceResponse(
                        index=one.partition,
                        error_code=one.error_code,
                        base_offset=one.base_offset,
                        log_start_offset=one.log_start_offset,
                        log_append_time=one.log_append_time_ms,
                        record_errors=tuple(
                            shape.BatchIndexAndErrorMessage(
                                batch_index=each.batch_index, batch_index_error_message=each.message
                            )
                            for each in one.record_errors
                        )
                        if one.record_errors and shape.version >= _FIRST_VERSION_WITH_RECORD_ERRORS
                        else (),
                        error_message=one.error_message,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
        throttle_time=0,
    )


def decode_fetch(values: dict[str, Any], context: RequestContext) -> logs.FetchRequest:
    """Fetch, versions 4 to 18."""
    return logs.FetchRequest(
        max_wait_ms=values["max_wait"],
        min_bytes=values["min_bytes"],
        max_bytes=values["max_bytes"],
        session_id=values.get("session_id", 0),
        session_epoch=values.get("session_epoch", -1),
        committed=values["isolation_level"] == _READ_COMMITTED,
        by_id=context.api_version >= _FIRST_FETCH_BY_ID,
        from_leader=context.api_version < _FIRST_FETCH_FROM_FOLLOWERS or _fetching_replica(values) >= 0,
        rack_id=values.get("rack_id", ""),
        forgotten=tuple(
            OfTopic(
                name=topic.get("topic"),
                topic_id=topic.get("topic_id"),
                partitions=tuple(topic["partitions"]),
            )
            for topic in values.get("forgotten_topics_data", ())
        ),
        topics=tuple(
            OfTopic(
                name=topic.get("topic"),
                topic_id=topic.get("topic_id"),
                partitions=tuple(
                    logs.FetchPartition(
                        partition=one["partition"],
                        fetch_offset=one["fetch_offset"],
                        partition_max_bytes=one["partition_max_bytes"],
                        current_leader_epoch=one.get("current_leader_epoch", NO_EPOCH),
                        last_fetched_epoch=one.get("last_fetched_epoch", NO_EPOCH),
                    )
                    for one in topic["partitions"]
                ),
            )
            for topic in values["topics"]
        ),
    )


def _fetching_replica(values: dict[str, Any]) -> int:
    state = values.get("replica_state")
    replica_id: int = values.get("replica_id", _CONSUMER) if state is None else state["replica_id"]
    return replica_id


def encode_fetch(reply: logs.FetchResponse, shape: Shape) -> Any:
    """Fetch, versions 4 to 18."""
    return shape.FetchResponse(
        throttle_time=0,
        error_code=reply.error_code,
        session_id=reply.session_id,
        responses=tuple(
            shape.FetchableTopicResponse(
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    shape.PartitionData(
                        partition_index=one.partition,
                        error_code=one.error_code,
                        high_watermark=one.high_watermark,
                        last_stable_offset=one.last_stable_offset,
                        log_start_offset=one.log_start_offset,
                        preferred_read_replica=one.preferred_read_replica,
                        aborted_transactions=_aborted(one, shape),
                        records=one.batches,
                        **_diverging(one, shape),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


def _aborted(partition: logs.FetchedPartition, shape: Shape) -> Any:
    if partition.aborted is None:
        return None
    return tuple(
        shape.AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in partition.aborted
    )


def _diverging(partition: logs.FetchedPartition, shape: Shape) -> dict[str, Any]:
    if partition.diverging_epoch == NO_EPOCH:
        return {}
    end = shape.EpochEndOffset(epoch=partition.diverging_epoch, end_offset=partition.high_watermark)
    return {"diverging_epoch": end}


def decode_list_offsets(values: dict[str, Any], context: RequestContext) -> logs.ListOffsetsRequest:
    """ListOffsets, versions 1 to 11. Only consumers are kept from what is not committed."""
    isolated = values.get("isolation_level") == _READ_COMMITTED
    return logs.ListOffsetsRequest(
        committed=isolated and values["replica_id"] == _CONSUMER,
        from_any_replica=values["replica_id"] == _DEBUGGING_CONSUMER,
        topics=tuple(
            OfTopic(
                name=topic["name"],
                partitions=tuple(
                    logs.ListOffsetsPartition(
                        partition=one["partition_index"],
                        timestamp_ms=one["timestamp"],
                        current_leader_epoch=one.get("current_leader_epoch", NO_EPOCH),
                    )
                    for one in topic["partitions"]
                ),
            )
            for topic in values["topics"]
        ),
    )


def encode_list_offsets(reply: logs.ListOffsetsResponse, shape: Shape) -> Any:
    """ListOffsets, versions 1 to 11."""
    return shape.ListOffsetsResponse(
        throttle_time=0,
        topics=tuple(
            shape.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    shape.ListOffsetsPartitionResponse(
                        partition_index=one.partition,
                        error_code=one.error_code,
                        timestamp=one.timestamp_ms,
                        offset=one.offset,
                        leader_epoch=one.leader_epoch,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


def decode_offset_for_leader_epoch(
    values: dict[str, Any], context: RequestContext
) -> logs.OffsetForLeaderEpochRequest:
    """OffsetForLeaderEpoch, versions 2 to 4."""
    return logs.OffsetForLeaderEpochRequest(
        topics=tuple(
            OfTopic(
                name=topic["topic"],
                partitions=tuple(
                    logs.LeaderEpochPartition(
                        partition=one["partition"],
                        leader_epoch=one["leader_epoch"],
                        current_leader_epoch=one["current_leader_epoch"],
                    )
                    for one in topic["partitions"]
                ),
            )
            for topic in values["topics"]
        )
    )


def encode_offset_for_leader_epoch(reply: logs.OffsetForLeaderEpochResponse, shape: Shape) -> Any:
    """OffsetForLeaderEpoch, versions 2 to 4."""
    return shape.OffsetForLeaderEpochResponse(
        throttle_time=0,
        topics=tuple(
            shape.OffsetForLeaderTopicResult(
                topic=topic.name,
                partitions=tuple(
                    shape.EpochEndOffset(
                        error_code=one.error_code,
                        partition=one.partition,
                        leader_epoch=one.leader_epoch,
                        end_offset=one.end_offset,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


def decode_delete_records(values: dict[str, Any], context: RequestContext) -> logs.DeleteRecordsRequest:
    """DeleteRecords, versions 0 to 2."""
    return logs.DeleteRecordsRequest(
        topics=tuple(
            OfTopic(
                name=topic["name"],
                partitions=tuple(
                    logs.DeleteRecordsPartition(one["partition_index"], one["offset"])
                    for one in topic["partitions"]
                ),
            )
            for topic in values["topics"]
        )
    )


def encode_delete_records(reply: logs.DeleteRecordsResponse, shape: Shape) -> Any:
    """DeleteRecords, versions 0 to 2."""
    return shape.DeleteRecordsResponse(
        throttle_time=0,
        topics=tuple(
            shape.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    shape.DeleteRecordsPartitionResult(
                        partition_index=one.partition,
                        low_watermark=one.low_watermark,
                        error_code=one.error_code,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )
