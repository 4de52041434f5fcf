"""DescribeLogDirs (35), DescribeProducers (61), DescribeTransactions (65), ListTransactions (66),
ListConfigResources (74).

DescribeLogDirs: 3 brings an error for all of it, 4 the size of the volume. ListTransactions: 1 brings the
filter by duration, 2 the one by pattern. ListConfigResources: 0 knows client metrics alone (it was
ListClientMetricsResources), 1 brings the other types.
"""

from __future__ import annotations

import itertools
from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import inspection
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.logs import OfTopic


def decode_describe_producers(
    values: dict[str, Any], context: RequestContext
) -> inspection.DescribeProducersRequest:
    """DescribeProducers, version 0."""
    return inspection.DescribeProducersRequest(
        topics=tuple(
            OfTopic(name=topic["name"], partitions=tuple(topic["partition_indexes"]))
            for topic in values["topics"]
        )
    )


def encode_describe_producers(reply: inspection.DescribeProducersResponse, shape: Shape) -> Any:
    """DescribeProducers, version 0."""
    return shape.DescribeProducersResponse(
        throttle_time=0,
        topics=tuple(
            shape.TopicResponse(
                name=topic.name,
                partitions=tuple(_partition(partition, shape) for partition in topic.partitions),
            )
            for topic in reply.topics
        ),
    )


def _partition(partition: inspection.PartitionProducers, shape: Shape) -> Any:
    return shape.PartitionResponse(
        partition_index=partition.partition,
        error_code=partition.error_code,
        error_message=partition.error_message,
        active_producers=tuple(
            shape.ProducerState(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_timestamp,
                coordinator_epoch=one.coordinator_epoch,
                current_txn_start_offset=one.transaction_start,
            )
            for one in partition.producers
        ),
    )


def decode_describe_transactions(
    values: dict[str, Any], context: RequestContext
) -> inspection.DescribeTransactionsRequest:
    """DescribeTransactions, version 0."""
    return inspection.DescribeTransactionsRequest(transactional_ids=tuple(values["transactional_ids"]))


def encode_describe_transactions(reply: inspection.DescribeTransactionsResponse, shape: Shape) -> Any:
    """DescribeTransactions, version 0."""
    return shape.DescribeTransactionsResponse(
        throttle_time=0,
        transaction_states=tuple(
            shape.TransactionState(
                error_code=one.error_code,
                transactional_id=one.transactional_id,
                transaction_state=one.state,
                transaction_timeout=one.timeout_ms,
                transaction_start_time=one.start_ms,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                topics=tuple(
                    shape.TopicData(topic=topic, partitions=tuple(each.partition for each in partitions))
                    for topic, partitions in itertools.groupby(
                        sorted(one.partitions), key=lambda each: each.topic
                    )
                ),
            )
            for one in reply.transactions
        ),
    )


def decode_list_transactions(
    values: dict[str, Any], context: RequestContext
) -> inspection.ListTransactionsRequest:
    """ListTransactions, versions 0 to 2."""
    return inspection.ListTransactionsRequest(
        states=tuple(values["state_filters"]),
        producer_ids=tuple(values["producer_id_filters"]),
        longer_than_ms=values.get("duration_filter", -1),
        pattern=values.get("transactional_id_pattern"),
    )


def encode_list_transactions(reply: inspection.ListTransactionsResponse, shape: Shape) -> Any:
    """ListTransactions, versions 0 to 2."""
    return shape.ListTransactionsResponse(
        throttle_time=0,
        error_code=reply.error_code,
        unknown_state_filters=reply.unknown_states,
        transaction_states=tuple(
            shape.TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state,
            )
            for one in reply.transactions
        ),
    )


def decode_list_config_resources(
    values: dict[str, Any], context: RequestContext
) -> inspection.ListConfigResourcesRequest:
    """ListConfigResources, versions 0 and 1."""
    known = frozenset(ResourceType) if context.api_version else frozenset({ResourceType.CLIENT_METRICS})
    return inspection.ListConfigResourcesRequest(
        resource_types=tuple(values.get("resource_types", ())), known_types=known
    )


def encode_list_config_resources(reply: inspection.ListConfigResourcesResponse, shape: Shape) -> Any:
    """ListConfigResources, versions 0 and 1."""
    return shape.ListConfigResourcesResponse(
        throttle_time=0,
        error_code=reply.error_code,
        config_resources=tuple(
            shape.ConfigResource(resource_name=one.name, resource_type=int(one.resource_type))
            for one in reply.resources
        ),
    )


def decode_describe_log_dirs(
    values: dict[str, Any], context: RequestContext
) -> inspection.DescribeLogDirsRequest:
    """DescribeLogDirs, versions 1 to 5."""
    topics = values["topics"]
    if topics is None:
        return inspection.DescribeLogDirsRequest(topics=None)
    return inspection.DescribeLogDirsRequest(
        topics=tuple(OfTopic(name=topic["topic"], partitions=tuple(topic["partitions"])) for topic in topics)
    )


def encode_describe_log_dirs(reply: inspection.DescribeLogDirsResponse, shape: Shape) -> Any:
    """DescribeLogDirs, versions 1 to 5. No log is about to replace another one, or lags behind."""
    return shape.DescribeLogDirsResponse(
        throttle_time=0,
        error_code=reply.error_code,
        results=tuple(
            shape.DescribeLogDirsResult(
                error_code=one.error_code,
                log_dir=one.path,
                topics=tuple(
                    shape.DescribeLogDirsTopic(
                        name=topic.name,
                        partitions=tuple(
                            shape.DescribeLogDirsPartition(
                                partition_index=log.partition,
                                partition_size=log.size,
                                offset_lag=0,
                                is_future_key=False,
                            )
                            for log in topic.partitions
                        ),
                    )
                    for topic in one.topics
                ),
                total_bytes=one.total_bytes,
                usable_bytes=one.usable_bytes,
            )
            for one in reply.log_dirs
        ),
    )
