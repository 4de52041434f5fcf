"""Handlers of administrators' queries: producers, transactions, resources with settings, log directories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol import inspection
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import Sliced
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.protocol.transaction_records import TransactionValue
from fencepost.coordinator.server.new_topics import check_topic_name
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import Work, in_turns
from fencepost.coordinator.transactions.states import TransactionState


@in_turns
def describe_producers(
    services: Services, request: inspection.DescribeProducersRequest, asked: Asked
) -> Work[inspection.DescribeProducersResponse]:
    """Describe each partition by itself, and once."""
    topics = []
    seen: set[tuple[str | None, int]] = set()
    for topic in request.topics:
        partitions = []
        for number in topic.partitions:
            if (topic.name, number) not in seen:
                seen.add((topic.name, number))
                partitions.append(_producers(services, topic.name, number))
            yield 1
        if partitions or not topic.partitions:
            topics.append(OfTopic(name=topic.name, partitions=tuple(partitions)))
        yield 1
    return inspection.DescribeProducersResponse(topics=tuple(topics))


def _producers(services: Services, topic: str | None, partition: int) -> inspection.PartitionProducers:
    found = None
    try:
        check_topic_name(topic or "")
        found = services.cluster.find(topic, None)
        log = services.log(found, partition)
    except ProtocolError as error:
        # Kafka sends a message for a topic's error, but only the code for a partition's error.
        message = error.message if found is None else None
        return inspection.PartitionProducers(
            partition=partition, error_code=error.code, error_message=message
        )
    return inspection.PartitionProducers(partition=partition, producers=tuple(log.producers.active()))


@in_turns
def describe_transactions(
    services: Services, request: inspection.DescribeTransactionsRequest, asked: Asked
) -> Work[inspection.DescribeTransactionsResponse]:
    """Describe each transactional id by itself, and once."""
    described = []
    for one in dict.fromkeys(request.transactional_ids):
        described.append(_described(services, one))
        yield 1
    return inspection.DescribeTransactionsResponse(transactions=tuple(described))


def _described(services: Services, transactional_id: str) -> inspection.DescribedTransaction:
    code = ErrorCode.NONE
    value = services.transactions.coordinator.transactions.get(transactional_id)
    if not transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif services.transactions.leader_id(transactional_id) != services.node_id:
        code = ErrorCode.NOT_COORDINATOR
    elif value is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if code is not ErrorCode.NONE or value is None:
        return inspection.DescribedTransaction(transactional_id=transactional_id, error_code=code)
    return inspection.DescribedTransaction(
        transactional_id=transactional_id,
        state=TransactionState.of_code(value.status),
        timeout_ms=value.timeout_ms,
        start_ms=value.start_ms,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        partitions=value.partitions,
    )


def list_transactions(
    services: Services, request: inspection.ListTransactionsRequest, asked: Asked
) -> inspection.ListTransactionsResponse | asyncio.Future[inspection.ListTransactionsResponse]:
    """Return the ids that this broker leads; an administrator asks all brokers."""
    return services.work_queue.run(_listed(services, request), asked.connection.share)


def _listed(
    services: Services, request: inspection.ListTransactionsRequest
) -> Sliced[inspection.ListTransactionsResponse]:
    now_ms = services.transactions.now_ms()

    def is_wanted(transactional_id: str, value: TransactionValue) -> bool:
        return (
            services.transactions.leader_id(transactional_id) == services.node_id
            and (not request.producer_ids or value.producer_id in request.producer_ids)
            and (not request.states or TransactionState.of_code(value.status) in request.states)
            and (request.longer_than_ms < 0 or now_ms - value.start_ms > request.longer_than_ms)
        )

    found = {
        transactional_id: value
        for transactional_id, value in sorted(services.transactions.coordinator.transactions.items())
        if is_wanted(transactional_id, value)
    }
    if request.pattern:
        try:
            matched = yield from matching(request.pattern, found)
        except ProtocolError as error:
            return inspection.ListTransactionsResponse(error_code=error.code)
        found = {transactional_id: found[transactional_id] for transactional_id in matched}
    return inspection.ListTransactionsResponse(
        unknown_states=tuple(state for state in dict.fromkeys(request.states) if state not in _STATES),
        transactions=tuple(
            inspection.ListedTransaction(
                transactional_id=transactional_id,
                producer_id=value.producer_id,
                state=TransactionState.of_code(value.status),
            )
            for transactional_id, value in found.items()
        ),
    )


_STATES = frozenset({*TransactionState, "PrepareEpochFence"})


def list_config_resources(
    services: Services, request: inspection.ListConfigResourcesRequest, asked: Asked
) -> inspection.ListConfigResourcesResponse:
    """Topics and brokers all have settings; of groups those do that were given some."""
    wanted = set(request.resource_types) or request.known_types
    if not wanted <= request.known_types:
        return inspection.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    nodes = [str(node.node_id) for node in services.cluster.nodes]
    names = {
        ResourceType.TOPIC: list(services.cluster.shown.by_name),
        ResourceType.BROKER: nodes,
        ResourceType.BROKER_LOGGER: nodes,
        ResourceType.GROUP: [
            key.name for key in services.cluster.configs if key.resource_type == ResourceType.GROUP
        ],
    }
    return inspection.ListConfigResourcesResponse(
        resources=tuple(
            inspection.ListedResource(resource_type=kind, name=name)
            for kind, found in names.items()
            if kind in wanted
            for name in found
        )
    )


IN_MEMORY: Final = "/in-memory"
"""The directory of logs that are on no disk: no path of any machine, and the same everywhere."""


def describe_log_dirs(
    services: Services, request: inspection.DescribeLogDirsRequest, asked: Asked
) -> inspection.DescribeLogDirsResponse:
    """Return one directory, without partitions that are not in it: Kafka has no error for unknown topics."""
    folder = services.cluster.log_folder
    total, usable = -1, -1
    if folder is not None:
        try:
            total, _, usable = shutil.disk_usage(folder)
        except OSError:
            gone = inspection.LogDir(path=str(folder), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
            return inspection.DescribeLogDirsResponse(log_dirs=(gone,))
    found = inspection.LogDir(
        path=IN_MEMORY if folder is None else str(folder),
        topics=tuple(_topics(services, request)),
        total_bytes=total,
        usable_bytes=usable,
    )
    return inspection.DescribeLogDirsResponse(log_dirs=(found,))


def _topics(
    services: Services, request: inspection.DescribeLogDirsRequest
) -> Iterator[OfTopic[inspection.LogSize]]:
    wanted: dict[str | None, set[int]] = {}
    for reference in request.topics or ():
        wanted.setdefault(reference.name, set()).update(reference.partitions)
    for name, topic in services.cluster.shown.by_name.items():
        everything = range(topic.partitions)
        numbers = everything if request.topics is None else wanted.get(name, set()).intersection(everything)
        sizes = tuple(_sizes(services, topic, sorted(numbers)))
        if sizes:
            yield OfTopic(name=name, partitions=sizes)


def _sizes(services: Services, topic: Topic, numbers: Iterable[int]) -> Iterator[inspection.LogSize]:
    """Yield the log sizes of the partitions that this broker has in Metadata; a log without writes is
    empty."""
    touched = dict(services.cluster.logs_of(topic))
    for number in numbers:
        if services.node_id in services.cluster.replica_ids(topic, number):
            log = touched.get(number)
            yield inspection.LogSize(partition=number, size=0 if log is None else log.size)
