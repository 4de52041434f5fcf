"""Answers to DescribeLogDirs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol import inspection
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.services import Asked, Services

IN_MEMORY: Final = "/in-memory"
"""The directory of logs that are on no disk: no path of any machine, and the same everywhere."""


def describe_log_dirs(
    services: Services, request: inspection.DescribeLogDirsRequest, asked: Asked
) -> inspection.DescribeLogDirsResponse:
    """One directory, without what is not in it: Kafka has no error for topics that it does not know."""
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
    for name, topic in services.cluster.image.by_name.items():
        everything = range(topic.partitions)
        numbers = everything if request.topics is None else wanted.get(name, set()).intersection(everything)
        sizes = tuple(_sizes(services, topic, sorted(numbers)))
        if sizes:
            yield OfTopic(name=name, partitions=sizes)


def _sizes(services: Services, topic: Topic, numbers: Iterable[int]) -> Iterator[inspection.LogSize]:
    """Of the partitions that Metadata says this broker has; one that nothing was written to is empty."""
    touched = dict(services.cluster.logs_of(topic))
    for number in numbers:
        if services.node_id in services.cluster.replica_ids(topic, number):
            log = touched.get(number)
            yield inspection.LogSize(partition=number, size=0 if log is None else log.size)
