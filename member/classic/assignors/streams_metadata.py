"""The shared parts of subscriptions and assignments of classic Kafka Streams groups: versions, hosts, error
codes."""

from __future__ import annotations

import enum
from typing import NamedTuple

LATEST_VERSION = 11
"""Of the metadata, in Kafka Streams 3.2 to 4.3."""
EARLIEST_VERSION = 7
"""The oldest version that is written and read here: Kafka Streams 2.6."""
NAMED_TOPOLOGY_VERSION = 10
"""From this version on a task is named with its topology, if that has a name."""


class HostInfo(NamedTuple):
    """The address at which an instance serves queries."""

    host: str
    port: int


class AssignorError(enum.IntEnum):
    """The errors that a leader sends to its members in place of an assignment."""

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    """A source topic does not exist."""
    VERSION_PROBING = 2
    """Sent by leaders before 2.4."""
    ASSIGNMENT_ERROR = 3
    """The leader could not assign."""
    SHUTDOWN_REQUESTED = 4
    """An instance requested the end of the whole application (KIP-671)."""


def check_version(version: int) -> None:
    """Check that a version is one that is written here.

    :raises ValueError: if it is not.
    """
    if not EARLIEST_VERSION <= version <= LATEST_VERSION:
        raise ValueError(f"version {version}, expected {EARLIEST_VERSION} to {LATEST_VERSION}")
