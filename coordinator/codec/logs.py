"""Produce (0), Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23).

Produce 13 and Fetch 13 bring topic ids in place of names; Fetch 7 sessions, 11 racks and the preferred read
replica, 12 leader epochs checked by the log, 15 moves the replica id into a tagged field. Produce 10 and
Fetch 16 bring new leaders (KIP-951). ListOffsets 7 to 11 add timestamps with a meaning only.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.layout import Layout, Via, only, row
from fencepost.coordinator.codec.offsets import of_topic
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.cluster import Node

_READ_COMMITTED = 1
_CONSUMER = -1
"""The replica id of clients."""
_DEBUGGING_CONSUMER = -2
"""The replica id of clients that ask any replica for its offsets."""
_FIRST_FETCH_FROM_FOLLOWERS = 11
_FIRST_FETCH_BY_ID = 13
_PARTITION = {"partition": "partition_index"}
_TOPIC = {"name": "topic"}
_CURRENT_LEADER = row("leader_id", "leader_epoch")

PRODUCE_REQUEST = Layout(
    logs.ProduceRequest,
    {"timeout_ms": "timeout", "topics": "topic_data"},
    fields={
        "topics": of_topic(
            Layout(
                logs.ProducedPartition,
                {"partition": "index"},
                fields={"records": Via(write=lambda records: (records,))},
            ),
            names={"partitions": "partition_data"},
        )
    },
)
PRODUCE_RESPONSE = Layout(
    logs.ProduceResponse,
    {"topics": "responses", "leaders": "node_endpoints", "throttle_time_ms": "throttle_time"},
    fields={
        "topics": of_topic(
            Layout(
                logs.AppendedPartition,
                {"partition": "index", "log_append_time_ms": "log_append_time"},
                fields={
                    "current_leader": _CURRENT_LEADER,
                    "record_errors": Layout(logs.RecordError, {"message": "batch_index_error_message"}),
                },
            ),
            names={"partitions": "partition_responses"},
        ),
        "leaders": Layout(Node),
    },
)


def _fetch(values: dict[str, Any], context: Any) -> logs.FetchRequest:
    version, replica_id = (
        context.api_version,
        values.get("replica_state", values.get("replica_id", _CONSUMER)),
    )
    return logs.FetchRequest(
        max_wait_ms=values["max_wait_ms"],
        min_bytes=values["min_bytes"],
        max_bytes=values["max_bytes"],
        session_id=values.get("session_id", 0),
        session_epoch=values.get("session_epoch", -1),
        committed=values["isolation_level"] == _READ_COMMITTED,
        by_id=version >= _FIRST_FETCH_BY_ID,
        from_leader=version < _FIRST_FETCH_FROM_FOLLOWERS or replica_id >= 0,
        rack_id=values.get("rack_id", ""),
        forgotten=values.get("forgotten", ()),
        topics=values["topics"],
    )


FETCH_REQUEST = Layout(
    logs.FetchRequest,
    {"max_wait_ms": "max_wait", "forgotten": "forgotten_topics_data"},
    fields={
        "topics": of_topic(Layout(logs.FetchPartition), names=_TOPIC),
        "forgotten": of_topic(names=_TOPIC),
        "replica_state": only("replica_id"),
    },
    write={
        "isolation_level": lambda request, _: int(request.committed),
        "replica_id": _CONSUMER,
    },
    read=_fetch,
)
FETCH_RESPONSE = Layout(
    logs.FetchResponse,
    {"topics": "responses", "leaders": "node_endpoints"},
    fields={
        "topics": of_topic(
            Layout(
                logs.FetchedPartition,
                _PARTITION
                | {
                    "batches": "records",
                    "aborted": "aborted_transactions",
                    "diverging_end": "diverging_epoch",
                },
                fields={
                    "current_leader": _CURRENT_LEADER,
                    "aborted": Layout(logs.AbortedTransaction),
                    "batches": Via(read=lambda records: (bytes(records),) if records else (), null=()),
                    "diverging_end": row("epoch", "end_offset"),
                },
            ),
            names=_TOPIC,
        ),
        "leaders": Layout(Node),
    },
)


def _list_offsets(values: dict[str, Any], _: Any) -> logs.ListOffsetsRequest:
    """Return the request. Only consumers can ask for committed records alone."""
    isolated = values.get("isolation_level") == _READ_COMMITTED
    return logs.ListOffsetsRequest(
        committed=isolated and values["replica_id"] == _CONSUMER,
        from_any_replica=values["replica_id"] == _DEBUGGING_CONSUMER,
        topics=values["topics"],
    )


LIST_OFFSETS_REQUEST = Layout(
    logs.ListOffsetsRequest,
    fields={
        "topics": of_topic(Layout(logs.ListOffsetsPartition, _PARTITION | {"timestamp_ms": "timestamp"}))
    },
    write={
        "replica_id": lambda request, _: _DEBUGGING_CONSUMER if request.from_any_replica else _CONSUMER,
        "isolation_level": lambda request, _: int(request.committed),
    },
    read=_list_offsets,
)
LIST_OFFSETS_RESPONSE = Layout(
    logs.ListOffsetsResponse,
    fields={"topics": of_topic(Layout(logs.ListedOffset, _PARTITION | {"timestamp_ms": "timestamp"}))},
)
OFFSET_FOR_LEADER_EPOCH_REQUEST = Layout(
    logs.OffsetForLeaderEpochRequest,
    fields={"topics": of_topic(Layout(logs.LeaderEpochPartition), names=_TOPIC)},
)
OFFSET_FOR_LEADER_EPOCH_RESPONSE = Layout(
    logs.OffsetForLeaderEpochResponse, fields={"topics": of_topic(Layout(logs.EpochEndOffset), names=_TOPIC)}
)
DELETE_RECORDS_REQUEST = Layout(
    logs.DeleteRecordsRequest, fields={"topics": of_topic(Layout(logs.DeleteRecordsPartition, _PARTITION))}
)
DELETE_RECORDS_RESPONSE = Layout(
    logs.DeleteRecordsResponse, fields={"topics": of_topic(Layout(logs.DeletedRecords, _PARTITION))}
)
