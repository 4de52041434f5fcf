"""The endpoint as a program: listens until it is cancelled."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence

from fencepost.coordinator.server.broker_config import BrokerConfig
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.storage import Storage


async def serve(
    host: str,
    port: int,
    topics: Mapping[str, int],
    config: BrokerConfig,
    on_ready: Callable[[Brokers], None],
    *,
    brokers: int = 1,
    racks: Sequence[str] = (),
    storage: Storage | None = None,
    users: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until cancelled; `on_ready` is called once, when connections are accepted.

    `brokers` listen on consecutive ports from `port` on. `racks` has the rack of each, if they have any.

    With `users`, passwords by name, clients have to log in; with `tls` they have to speak TLS.

    :raises FencepostError: for a topic that Kafka would refuse, or a user that can't be one.
    :raises EnvironmentLacks: if the address can't be listened on, or the storage takes no more; the text says
        what to do.
    """
    served = Brokers(
        topics,
        host=host,
        ports=ports_from(port, brokers),
        config=config.groups,
        racks=racks,
        replica_selector=config.replica_selector,
        new_topics=config.new_topics,
        topic_defaults=config.topic_defaults,
        storage=storage,
        users=users,
        tls=tls,
    )
    async with served:
        on_ready(served)
        await served.until_failure()


def ports_from(port: int, brokers: int) -> tuple[int, ...]:
    """Return consecutive ports, one for each broker; all 0, which stands for a free one, if the first is."""
    return tuple(port and port + nth for nth in range(brokers))
