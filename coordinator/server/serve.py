"""The endpoint as a program: listens until it is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.server.broker import Broker
from fencepost.coordinator.server.storage import Storage


async def serve(
    host: str,
    port: int,
    topics: Mapping[str, int],
    config: GroupCoordinatorConfig,
    on_ready: Callable[[Broker], None],
    *,
    storage: Storage | None = None,
) -> None:
    """Serve until cancelled; `on_ready` is called once, when connections are accepted.

    :raises FencepostError: for a topic that Kafka would refuse.
    :raises EnvironmentLacks: if the address can't be listened on, or the storage takes no more; the text says
        what to do.
    """
    async with Broker(topics, host=host, port=port, config=config, storage=storage) as broker:
        on_ready(broker)
        await broker.until_failure()
