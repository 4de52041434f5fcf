"""DescribeLogDirs (35), DescribeProducers (61), DescribeTransactions (65), ListTransactions (66),
ListConfigResources (74).

DescribeLogDirs: 3 brings an error for all of it, 4 the size of the volume. ListTransactions: 1 brings the
filter by duration, 2 the one by pattern. ListConfigResources: 0 knows client metrics alone (it was
ListClientMetricsResources), 1 brings the other types.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.layout import Layout, Via, row
from fencepost.coordinator.codec.offsets import of_topic
from fencepost.coordinator.codec.transactions import partitions_by_topic, topic_partitions_of
from fencepost.coordinator.protocol import inspection
from fencepost.coordinator.protocol.administration import ResourceType

_PARTITION = {"partition": "partition_index"}

DESCRIBE_PRODUCERS_REQUEST = Layout(
    inspection.DescribeProducersRequest,
    fields={"topics": of_topic(names={"partitions": "partition_indexes"})},
)
DESCRIBE_PRODUCERS_RESPONSE = Layout(
    inspection.DescribeProducersResponse,
    fields={
        "topics": of_topic(
            Layout(
                inspection.PartitionProducers,
                _PARTITION | {"producers": "active_producers"},
                fields={
                    "producers": Layout(
                        inspection.ActiveProducer, {"transaction_start": "current_txn_start_offset"}
                    )
                },
            )
        )
    },
)
DESCRIBE_TRANSACTIONS_REQUEST = Layout(inspection.DescribeTransactionsRequest)
_TRANSACTIONS = {"transactions": "transaction_states"}
DESCRIBE_TRANSACTIONS_RESPONSE = Layout(
    inspection.DescribeTransactionsResponse,
    _TRANSACTIONS,
    fields={
        "transactions": Layout(
            inspection.DescribedTransaction,
            {
                "state": "transaction_state",
                "timeout_ms": "transaction_timeout",
                "start_ms": "transaction_start_time",
                "partitions": "topics",
            },
            fields={
                "partitions": Via(
                    of=row("topic", "partitions"),
                    read=topic_partitions_of,
                    write=lambda partitions: partitions_by_topic(sorted(partitions)).items(),
                )
            },
        )
    },
)
LIST_TRANSACTIONS_REQUEST = Layout(
    inspection.ListTransactionsRequest,
    {
        "states": "state_filters",
        "producer_ids": "producer_id_filters",
        "longer_than_ms": "duration_filter",
        "pattern": "transactional_id_pattern",
    },
)
LIST_TRANSACTIONS_RESPONSE = Layout(
    inspection.ListTransactionsResponse,
    _TRANSACTIONS | {"unknown_states": "unknown_state_filters"},
    fields={"transactions": Layout(inspection.ListedTransaction, {"state": "transaction_state"})},
)


def _list_config_resources(values: dict[str, Any], context: Any) -> inspection.ListConfigResourcesRequest:
    known = frozenset(ResourceType) if context.api_version else frozenset({ResourceType.CLIENT_METRICS})
    return inspection.ListConfigResourcesRequest(**values, known_types=known)


LIST_CONFIG_RESOURCES_REQUEST = Layout(inspection.ListConfigResourcesRequest, read=_list_config_resources)
LIST_CONFIG_RESOURCES_RESPONSE = Layout(
    inspection.ListConfigResourcesResponse,
    {"resources": "config_resources"},
    fields={
        "resources": Layout(
            inspection.ListedResource, {"name": "resource_name"}, absent={"resource_type": 16}
        )
    },
)
DESCRIBE_LOG_DIRS_REQUEST = Layout(
    inspection.DescribeLogDirsRequest, fields={"topics": of_topic(names={"name": "topic"})}
)
DESCRIBE_LOG_DIRS_RESPONSE = Layout(  # no future logs, no lag
    inspection.DescribeLogDirsResponse,
    {"log_dirs": "results"},
    fields={
        "log_dirs": Layout(
            inspection.LogDir,
            {"path": "log_dir"},
            fields={"topics": of_topic(Layout(inspection.LogSize, _PARTITION | {"size": "partition_size"}))},
        )
    },
)
