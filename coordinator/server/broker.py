"""A broker in this process: one port, the cluster behind it, and the coordinator of all groups."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES
from fencepost.coordinator.config import NO_NEW_TOPICS, GroupCoordinatorConfig, NewTopicConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.storage import Storage
from fencepost.coordinator.server.topic_configs import KAFKA_DEFAULTS, TopicDefaults


class Broker(Brokers):
    """Serves the Kafka protocol on one port of the running loop.

        async with Broker(topics={"orders": 12}) as broker:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, ...})

    `port` 0 takes a free one. Without a storage everything is in memory and gone with the broker.
    With `users`, passwords by name, clients have to log in; with `tls` they have to speak TLS.
    :raises FencepostError: for a topic that Kafka would refuse, or a user that can't be one.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: GroupCoordinatorConfig | None = None,
        storage: Storage | None = None,
        new_topics: NewTopicConfig = NO_NEW_TOPICS,
        topic_defaults: TopicDefaults = KAFKA_DEFAULTS,
        max_frame_bytes: int = KAFKA_MAX_FRAME_BYTES,
        max_connections: int = 10_000,
        users: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            topics,
            host=host,
            ports=(port,),
            config=config,
            storage=storage,
            new_topics=new_topics,
            topic_defaults=topic_defaults,
            max_frame_bytes=max_frame_bytes,
            max_connections=max_connections,
            users=users,
            tls=tls,
        )

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self.ports[0]

    @property
    def coordinator(self) -> GroupCoordinator:
        """The coordinator, once started."""
        coordinator = self.groups.shards[0].coordinator
        assert coordinator is not None
        return coordinator
