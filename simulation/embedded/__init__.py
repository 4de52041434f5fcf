"""Kafka inside a test process: real clients join it, and the test drives what happens to their groups.

`EmbeddedKafka` is imported with what it needs when it is first asked for: it takes `fencepost[embedded]`.
`EmbeddedRabbitStream` is the same for RabbitMQ's streams, and takes nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.coordinator.kinds import GroupMember as GroupMember
    from fencepost.simulation.embedded.groups import AsyncGroup as AsyncGroup
    from fencepost.simulation.embedded.groups import Group as Group
    from fencepost.simulation.embedded.kafka import AsyncEmbeddedKafka as AsyncEmbeddedKafka
    from fencepost.simulation.embedded.kafka import EmbeddedKafka as EmbeddedKafka
    from fencepost.simulation.embedded.logs import ReadRecord as ReadRecord
    from fencepost.simulation.embedded.rabbit import AsyncEmbeddedRabbitStream as AsyncEmbeddedRabbitStream
    from fencepost.simulation.embedded.rabbit import EmbeddedRabbitStream as EmbeddedRabbitStream
    from fencepost.simulation.embedded.rabbit_endpoint import StreamMessage as StreamMessage
    from fencepost.simulation.embedded.rabbit_groups import AsyncStreamGroup as AsyncStreamGroup
    from fencepost.simulation.embedded.rabbit_groups import StreamConsumer as StreamConsumer
    from fencepost.simulation.embedded.rabbit_groups import StreamGroup as StreamGroup

_MODULES = {
    "AsyncEmbeddedKafka": "kafka",
    "AsyncEmbeddedRabbitStream": "rabbit",
    "AsyncGroup": "groups",
    "AsyncStreamGroup": "rabbit_groups",
    "EmbeddedKafka": "kafka",
    "EmbeddedRabbitStream": "rabbit",
    "Group": "groups",
    "GroupMember": "groups",
    "ReadRecord": "logs",
    "StreamConsumer": "rabbit_groups",
    "StreamGroup": "rabbit_groups",
    "StreamMessage": "rabbit_endpoint",
}

__all__ = [
    "AsyncEmbeddedKafka",
    "AsyncEmbeddedRabbitStream",
    "AsyncGroup",
    "AsyncStreamGroup",
    "EmbeddedKafka",
    "EmbeddedRabbitStream",
    "Group",
    "GroupMember",
    "ReadRecord",
    "StreamConsumer",
    "StreamGroup",
    "StreamMessage",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
