"""The endpoint as a program: listens until it is cancelled."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from fencepost.coordinator.server.broker import Broker
from fencepost.coordinator.server.broker_config import BrokerConfig
from fencepost.coordinator.server.storage import Storage


async def serve(
    host: str,
    port: int,
    topics: Mapping[str, int],
    config: BrokerConfig,
    on_ready: Callable[[Broker], None],
    *,
    storage: Storage | None = None,
    users: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until cancelled; `on_ready` is called once, when connections are accepted.

    With `users`, passwords by name, clients have to log in; with `tls` they have to speak TLS.

    :raises FencepostError: for a topic that Kafka would refuse, or a user that can't be one.
    :raises EnvironmentLacks: if the address can't be listened on, or the storage takes no more; the text says
        what to do.
    """
    broker = Broker(
        topics,
        host=host,
        port=port,
        config=config.groups,
        new_topics=config.new_topics,
        topic_defaults=config.topic_defaults,
        storage=storage,
        users=users,
        tls=tls,
    )
    async with broker:
        on_ready(broker)
        await broker.until_failure()
