"""The ids of new topics, and what their names, partitions and replicas can be."""

from __future__ import annotations

import uuid

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId, topic_id_from_uuid
from fencepost.coordinator.protocol.topics import is_valid_name

MAX_PARTITIONS = 100_000
"""Of one topic; a request for more is taken for a mistake."""


def new_topic_id() -> TopicId:
    """Return a fresh topic id."""
    while True:
        topic_id = topic_id_from_uuid(uuid.uuid4())
        if not topic_id.startswith("-"):
            # Kafka avoids ids that look like an option on a command line.
            return topic_id


def check_topic_name(name: str) -> None:
    """Refuse what Kafka refuses.

    :raises ProtocolError: INVALID_TOPIC_EXCEPTION, with the rule.
    """
    if not is_valid_name(name):
        raise ProtocolError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r}: 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-', and neither '.' nor '..'",
        )


def check_partitions(partitions: int) -> None:
    """Refuse a number of partitions that no topic can have.

    :raises ProtocolError: INVALID_PARTITIONS.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions, expected 1 to {MAX_PARTITIONS}"
        )


def check_replicas(replicas: int, brokers: int) -> None:
    """Refuse more replicas than there are brokers.

    :raises ProtocolError: INVALID_REPLICATION_FACTOR.
    """
    if replicas > brokers:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of "
            f"{replicas} cannot be reached because only {brokers} broker(s) are registered or some brokers "
            "have all their log directories cordoned.",
        )
